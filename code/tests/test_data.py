"""The data: what arrives is what was published, and every fault on the way is said in one line."""

import contextlib
import gzip
import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision.datasets import MNIST

from highway import data
from highway.data import Batches, DataError, breast_cancer_pair, make_loader, mnist, sample, toy

NAMES = sorted(data.SHA256)


@pytest.fixture(autouse=True)
def no_mnist_of_the_developer(request, monkeypatch, tmp_path):
    """Point the cache into an empty folder and the mirrors nowhere, unless a test asks for the real MNIST."""
    if "mnist_is_here" not in request.fixturenames:
        monkeypatch.delenv(data.FOLDER_VARIABLE, raising=False)
        monkeypatch.setattr(data, "user_cache_path", lambda name: tmp_path / "cache" / name)
        monkeypatch.setattr(MNIST, "mirrors", [])


# Files that are here


def test_the_splits_of_the_files(stored, small_files):
    pixels = np.frombuffer(small_files["train-images-idx3-ubyte"][16:], np.uint8).reshape(30, 1, 28, 28).copy()
    images, labels = mnist("validation", standardise=False).tensors
    assert (images.dtype, images.shape) == (torch.float32, (10, 1, 28, 28))
    assert (labels.dtype, labels.shape) == (torch.int64, (10,))
    assert torch.equal(images, torch.from_numpy(pixels[:10]).float() / 255)
    assert labels.tolist() == list(range(10))
    assert torch.equal(mnist("train", standardise=False).tensors[0], torch.from_numpy(pixels[10:]).float() / 255)
    assert len(mnist("training file")) == 30
    assert len(mnist("test")) == 20
    scaled = mnist("validation", standardise=True).tensors[0]
    torch.testing.assert_close(scaled * 0.3081 + 0.1307, images)


def test_an_unknown_split_names_those_that_there_are():
    with pytest.raises(ValueError, match="unknown split 'dev': choose one of train, validation, training file, test"):
        mnist("dev")


def truncated(content):
    return content[:-100]


def wrong_magic(content):
    return b"\x00\x00\x09" + content[3:]


def one_bit(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def nothing(content):
    return b""


@pytest.mark.parametrize("damage", [truncated, wrong_magic, one_bit, nothing])
@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-images-idx3-ubyte", "validation"),
        ("train-labels-idx1-ubyte", "train"),
        ("t10k-labels-idx1-ubyte", "test"),
    ],
)
def test_a_damaged_file_is_named(stored, damage, name, split):
    mnist(split)  # its checksum was seen to be right before
    (stored / name).write_bytes(damage((stored / name).read_bytes()))
    with pytest.raises(DataError) as caught:
        mnist(split)
    assert str(caught.value).startswith(f"{stored / name} is damaged: its SHA-256 is ")
    assert "Delete it" in str(caught.value)


def test_a_checksum_that_is_not_the_published_one(stored, monkeypatch):
    monkeypatch.setitem(data.SHA256, "t10k-images-idx3-ubyte", "ab" * 32)
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte is damaged.*not abababababab"):
        mnist("test")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(stored, name):
    (stored / name).unlink()
    assert not data.mnist_is_present()
    with pytest.raises(DataError, match=f"{name} is missing: {data.FOLDER_VARIABLE} must name a folder.*unset it"):
        mnist("train")


def test_a_folder_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=f"nowhere.* is missing: {data.FOLDER_VARIABLE} must name"):
        mnist("test")
    assert not (tmp_path / "nowhere").exists()


def test_the_published_checksums(mnist_is_here):
    assert len(mnist("test")) == 10_000
    images, labels = mnist("training file", standardise=True).tensors
    assert images.shape == (60_000, 1, 28, 28)
    assert abs(images.mean()) < 1e-3
    assert abs(images.std() - 1) < 1e-3
    assert torch.equal(mnist("validation").tensors[1], labels[:10_000])
    assert torch.equal(mnist("train").tensors[1], labels[10_000:])


# The download


class Mirror:
    """A server on this machine; `answer(handler, content)` decides what a request for a file gets."""

    def __init__(self, files, answer):
        self.asked = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                mirror.asked.append(self.path)
                with contextlib.suppress(ConnectionError):
                    answer(self, files[self.path.lstrip("/")])

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def mirror(small_mnist, small_files, monkeypatch):
    """Start a mirror of the small files, from which alone torchvision downloads; for good files or for bad."""
    running = []

    def start(answer, change=lambda content: content):
        packed = {f"{name}.gz": gzip.compress(content) for name, content in small_files.items()}
        running.append(Mirror({name: change(content) for name, content in packed.items()}, answer))
        monkeypatch.setattr(MNIST, "mirrors", [running[-1].address])
        names = [
            f"{part}-{kind}.gz" for part in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
        ]
        monkeypatch.setattr(MNIST, "resources", [(name, hashlib.md5(packed[name]).hexdigest()) for name in names])
        return running[-1]

    yield start
    for server in running:
        server.close()


def whole(handler, content):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def refused(handler, content):
    handler.send_error(403)


def not_found(handler, content):
    handler.send_error(404)


def half(handler, content):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2])
    handler.wfile.flush()


def half_that_says_it_is_whole(handler, content):
    whole(handler, content[: len(content) // 2])


def closed(handler, content):
    handler.connection.close()


def garbage(handler, content):
    handler.wfile.write(b"This is no answer of a web server.\r\n\r\n")


def a_page_instead(handler, content):
    whole(handler, b"<html>Please sign in to use this network.</html>")


def silent(handler, content):
    time.sleep(60)


def silent_after_half(handler, content):
    half(handler, content)
    time.sleep(60)


def nothing_was_written(cache) -> bool:
    return [path for path in cache.rglob("*") if path.is_file()] == [] and list(cache.glob(".mnist-*")) == []


def test_the_download(mirror, small_files, tmp_path):
    server = mirror(whole)
    assert not data.mnist_is_present()
    assert len(mnist("train")) == 20
    raw = tmp_path / "cache" / "highway" / "MNIST" / "raw"
    assert {path.name: path.read_bytes() for path in raw.iterdir()} == small_files
    assert [path.name for path in (tmp_path / "cache" / "highway").iterdir()] == ["MNIST"]
    assert data.mnist_is_present()
    assert {path.lstrip("/").removesuffix(".gz") for path in server.asked} == set(small_files)
    asked = len(server.asked)
    assert len(mnist("test")) == 20
    assert len(server.asked) == asked


@pytest.mark.parametrize(
    "answer",
    [refused, not_found, half, half_that_says_it_is_whole, closed, garbage, a_page_instead, silent, silent_after_half],
)
def test_a_mirror_that_fails(mirror, monkeypatch, tmp_path, answer):
    server = mirror(answer)
    monkeypatch.setattr(data._download, "__defaults__", (0.5,))
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        mnist("train")
    assert time.monotonic() - start < 30, "the silence of a mirror was waited out"
    assert server.asked
    message = str(caught.value)
    assert message.startswith(f"MNIST could not be downloaded into {tmp_path / 'cache' / 'highway'} (")
    assert f"set {data.FOLDER_VARIABLE}" in message
    assert "\n" not in message
    assert nothing_was_written(tmp_path / "cache")
    mirror(whole)
    assert len(mnist("train")) == 20


def test_a_mirror_that_is_not_there(mirror, tmp_path):
    mirror(whole).close()
    with pytest.raises(DataError, match="could not be downloaded"):
        mnist("train")
    assert nothing_was_written(tmp_path / "cache")


def test_files_that_arrive_whole_and_are_not_the_published_ones(mirror, monkeypatch, tmp_path):
    mirror(whole)
    monkeypatch.setitem(data.SHA256, "t10k-labels-idx1-ubyte", "ab" * 32)
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte arrived damaged"):
        mnist("train")
    assert nothing_was_written(tmp_path / "cache")


def test_a_mirror_that_breaks_after_two_files(mirror, tmp_path):
    sent = []

    def answer(handler, content):
        sent.append(content)
        (whole if len(sent) <= 2 else refused)(handler, content)

    mirror(answer)
    with pytest.raises(DataError, match="could not be downloaded"):
        mnist("train")
    assert nothing_was_written(tmp_path / "cache")


def test_a_cache_folder_that_cannot_be_made(mirror, monkeypatch, tmp_path):
    mirror(whole)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(data, "user_cache_path", lambda name: tmp_path / "file" / name)
    with pytest.raises(DataError, match=r"could not be downloaded into .*file.*Not a directory"):
        mnist("train")


# Batches and loaders


def numbered(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n).float().view(n, 1), torch.arange(n))


@pytest.mark.parametrize("make", [Batches, make_loader])
@pytest.mark.parametrize(("n", "size"), [(10, 3), (10, 5), (3, 10), (1, 1)])
def test_a_pass_yields_every_example_once(make, n, size):
    for seed in (None, 0):
        loader = make(numbered(n), size, seed)
        batches = list(loader)
        assert len(batches) == len(loader) == -(-n // size)
        assert [len(labels) for _, labels in batches[:-1]] == [size] * (len(batches) - 1)
        assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == list(range(n))
        assert all(torch.equal(inputs.view(-1), labels.float()) for inputs, labels in batches)


def order(loader) -> list[int]:
    return torch.cat([labels for _, labels in loader]).tolist()


@pytest.mark.parametrize("make", [Batches, make_loader])
def test_the_order_is_that_of_the_seed(make):
    data_set = numbered(50)
    one, same, other = make(data_set, 8, 1), make(data_set, 8, 1), make(data_set, 8, 2)
    passes = [order(one), order(one)]
    torch.manual_seed(5)  # the global generator has no say
    assert [order(same), order(same)] == passes
    assert passes[0] != passes[1]
    assert order(other) != passes[0]
    assert order(make(data_set, 8)) == list(range(50))


@pytest.mark.parametrize("make", [Batches, make_loader])
@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_at_least_one_example(make, size):
    with pytest.raises(ValueError, match="batch_size"):
        make(numbered(3), size)


# The sample


@pytest.fixture(scope="module")
def parts():
    return {part: sample(part, standardise=True) for part in ("train", "held out")}


def test_the_sample_is_balanced_and_its_parts_are_disjoint(parts):
    assert torch.bincount(parts["train"].tensors[1]).tolist() == [400] * 10
    assert torch.bincount(parts["held out"].tensors[1]).tolist() == [100] * 10
    images = parts["train"].tensors[0]
    assert (images.dtype, images.shape) == (torch.float32, (4000, 1, 28, 28))
    as_bytes = [{image.numpy().tobytes() for image in part.tensors[0]} for part in parts.values()]
    assert len(as_bytes[0] | as_bytes[1]) == 5000
    plain = sample("train", standardise=False).tensors[0]
    assert (plain.min(), plain.max()) == (0, 1)
    torch.testing.assert_close(images * 0.3081 + 0.1307, plain)


def test_an_unknown_part_names_those_that_there_are():
    with pytest.raises(ValueError, match="unknown part 'test': choose one of train, held out"):
        sample("test")


def test_the_sample_lies_inside_validation(mnist_is_here, parts):
    images, labels = mnist("validation", standardise=True).tensors
    where = {image.numpy().tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    for part in parts.values():
        for image, label in zip(*part.tensors, strict=True):
            assert where[image.numpy().tobytes()] == label


# Small sets


@pytest.mark.parametrize("name", ["moons", "circles", "xor", "spiral"])
def test_a_toy_set(name):
    points, labels = toy(name, 201, seed=3).tensors
    assert (points.dtype, points.shape) == (torch.float32, (201, 2))
    assert (labels.dtype, labels.shape) == (torch.int64, (201,))
    counts = torch.bincount(labels)
    assert len(counts) == 2
    assert counts.min() > 70
    assert torch.equal(toy(name, 201, seed=3).tensors[0], points)
    assert not torch.equal(toy(name, 201, seed=4).tensors[0], points)
    assert not torch.equal(toy(name, 201, noise=0.1, seed=3).tensors[0], points)


def test_the_classes_of_toy_sets_without_noise():
    points, labels = toy("xor", 100, noise=0).tensors
    assert torch.equal(labels, (points[:, 0] * points[:, 1] > 0).long())
    points, labels = toy("circles", 100, noise=0).tensors
    torch.testing.assert_close(points.norm(dim=1), torch.where(labels == 1, 0.5, 1.0))
    points, labels = toy("spiral", 100, noise=0).tensors
    radius = points.norm(dim=1)
    angle = 3 * torch.pi * radius + torch.pi * labels
    torch.testing.assert_close(points, radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1), atol=1e-5, rtol=0)


def test_a_toy_set_that_is_not_there():
    with pytest.raises(ValueError, match="unknown toy set 'rings': choose one of moons, circles, xor, spiral"):
        toy("rings", 10)
    with pytest.raises(ValueError, match="n must be at least 1, not 0"):
        toy("moons", 0)


def test_the_breast_cancer_pair():
    features, labels = breast_cancer_pair().tensors
    assert (features.dtype, features.shape) == (torch.float32, (569, 2))
    assert torch.bincount(labels).tolist() == [212, 357]
    assert features[0].tolist() == pytest.approx([10.38, 1001.0])
