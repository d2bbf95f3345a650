"""What several test modules share."""

import hashlib
import struct

import numpy as np
import pytest


@pytest.fixture
def book_style():
    """Draw in the style of the book and without a window, and leave no figure and no setting behind."""
    import matplotlib
    from matplotlib import pyplot

    from highway.style import use_book_style

    pyplot.switch_backend("agg")
    with matplotlib.rc_context():
        use_book_style()
        yield
    pyplot.close("all")


@pytest.fixture
def mnist_is_here():
    """Skip a test where MNIST is not."""
    from highway import data

    if not data.mnist_is_present():
        pytest.skip(f"MNIST is not in {data.mnist_folder()[0]}, or where {data.FOLDER_VARIABLE} says")


def idx(array: np.ndarray) -> bytes:
    """An array of bytes in the format of MNIST's files."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture(scope="session")
def small_files() -> dict[str, bytes]:
    """Four files like MNIST's, with 30 training and 20 test images."""
    rng = np.random.default_rng(0)
    files = {}
    for part, n in (("train", 30), ("t10k", 20)):
        files[f"{part}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        files[f"{part}-labels-idx1-ubyte"] = idx(np.arange(n, dtype=np.uint8) % 10)
    return files


@pytest.fixture
def small_mnist(small_files, monkeypatch):
    """Have the small files count as the published ones."""
    from highway import data

    published = {name: hashlib.sha256(content).hexdigest() for name, content in small_files.items()}
    monkeypatch.setattr(data, "SHA256", published)
    monkeypatch.setattr(
        data,
        "SPLITS",
        {
            "train": ("train", slice(10, 30)),
            "validation": ("train", slice(0, 10)),
            "training file": ("train", slice(0, 30)),
            "test": ("t10k", slice(0, 20)),
        },
    )


@pytest.fixture
def stored(small_mnist, small_files, monkeypatch, tmp_path):
    """A folder that `HIGHWAY_DATA` names, with the small files in MNIST/raw; returns MNIST/raw."""
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in small_files.items():
        (raw / name).write_bytes(content)
    monkeypatch.setenv("HIGHWAY_DATA", str(tmp_path / "data"))
    return raw


@pytest.fixture(scope="session")
def quick_results(tmp_path_factory):
    """A folder with the results of `highway run NAME --quick` for first-net and depth20; not to be changed."""
    from highway.cli import main

    folder = tmp_path_factory.mktemp("quick")
    for name in ("first-net", "depth20"):
        assert main(["run", name, "--quick", "--out", str(folder)]) == 0
    return folder
