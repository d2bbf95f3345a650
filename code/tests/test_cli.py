"""The command line, from end to end."""

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from highway import data, experiments, results
from highway.cli import main
from highway.experiments import Experiment, NetworkSpec

TINY = Experiment(
    name="tiny",
    title="A tiny one",
    networks=(NetworkSpec("highway", 5, 1, gate_bias=-2.0), NetworkSpec("plain", 5, 1)),
    rates=(0.01, 0.1),
    seeds=(0, 1),
    epochs=2,
    probe_steps=(0, 1),
    keep=("highway-5-default", "plain-5-default"),
)


def tiny_data(experiment: Experiment) -> dict[str, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(400, 784, generator=generator), torch.arange(400) % 10
    return {split: TensorDataset(images, labels) for split in ("train", "validation", "test", "sample")}


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A catalogue of one tiny experiment on invented data, and an empty folder for the book's results."""
    monkeypatch.setattr(experiments, "CATALOGUE", {"tiny": TINY})
    monkeypatch.setattr(experiments, "load_data", tiny_data)
    monkeypatch.setenv(results.FOLDER_VARIABLE, str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.fixture
def says(capsys):
    """Run a command; return its exit status and the lines of standard output and of standard error."""

    def run(*arguments: object) -> tuple[int, list[str], list[str]]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out.splitlines(), [line for line in err.splitlines() if line.startswith("highway: ")]

    return run


@pytest.fixture
def copied(quick_results, tmp_path):
    """A copy of the quick results, to be damaged."""
    return Path(shutil.copytree(quick_results, tmp_path / "copied"))


# Usage


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["walk"]])
def test_help_and_wrong_usage_do_not_wait_for_torch(arguments):
    code = f"""
import sys
from highway.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    print("torch" in sys.modules, end.code)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == f"False {2 if arguments == ['walk'] else 0}"
    text = ended.stdout + ended.stderr
    assert "usage: highway" in text
    assert all(word in text for word in ({"list", "run", "verify", "table"} if len(arguments) == 1 else {"--quick"}))


@pytest.mark.parametrize(
    "arguments", [[], ["walk"], ["run"], ["run", "tiny", "--all"], ["list", "tiny"], ["run", "-x"]]
)
def test_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: highway" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "depth21"], ["verify", "first-net", "depth21"], ["table", "depth21"]])
def test_an_unknown_experiment_names_those_that_there_are(says, command):
    status, out, errors = says(*command)
    assert (status, out) == (1, [])
    assert errors == [f"highway: unknown experiment 'depth21': choose one of {', '.join(experiments.CATALOGUE)}"]


def test_the_console_script_is_this():
    ended = subprocess.run([Path(sys.executable).parent / "highway", "--help"], capture_output=True, text=True)
    assert ended.returncode == 0
    assert "usage: highway" in ended.stdout


# Quick runs of the real experiments


@pytest.mark.parametrize("name", ["first-net", "depth20"])
def test_a_quick_run_learns(quick_results, name):
    result = results.load(name, quick_results)
    assert result.record["configuration"]["source"] == "sample"
    assert [network["weights"] for network in result.record["networks"]] == list(experiments.CATALOGUE[name].keep)
    for network in result.record["networks"]:
        assert network["accuracy"]["sample"] > 0.85


def test_a_quick_plain_net_of_20_blocks_stays_at_chance(quick_results):
    history = results.load("depth20", quick_results).history
    plain = history[history["network"].str.startswith("plain") & (history["init"] == "default")]
    last = plain[plain["epoch"] == plain["epoch"].max()]
    assert len(last) == 2 * 4
    assert (last.loc[last["split"].isin(["running", "validation"]), "loss"] - math.log(10)).abs().max() < 0.01


def test_quick_results_verify(quick_results, says):
    status, out, errors = says("verify", "first-net", "depth20", "--out", quick_results)
    assert (status, errors) == (0, [])
    assert out[-1] == "verify: all is right"
    for name in ("first-net", "depth20"):
        assert f"{name}: record, configuration, code and" in "\n".join(out)
        for network in results.load(name, quick_results).record["networks"]:
            line = next(line for line in out if f"{network['weights']} comes out again" in line)
            assert f"{network['accuracy']['sample']:.4f} on 1000 sample digits" in line
            assert f"{network['accuracy']['test']:.4f} on 500 test digits" in line


def test_quick_results_as_a_table(quick_results, says):
    status, out, errors = says("table", "depth20", "--out", quick_results)
    assert (status, errors) == (0, [])
    rows = [line for line in out if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows[1:]] == [
        network.name for network in experiments.CATALOGUE["depth20"].networks
    ]


@pytest.mark.parametrize("inside", ["", "first-net", "deep/er"])
def test_a_quick_run_never_touches_the_books_results(tiny, says, inside):
    for arguments in (["--out", tiny / inside], []):
        status, _, errors = says("run", "tiny", "--quick", *arguments)
        assert status == 1
        assert errors == ["highway: --quick needs --out FOLDER outside the book's results, which it never replaces"]
    assert not tiny.exists()


def test_a_quick_run_never_touches_the_results_of_the_checkout(tiny, says, monkeypatch, tmp_path):
    monkeypatch.setattr(results, "PACKAGE", tmp_path / "clone" / "code" / "highway")
    out = tmp_path / "clone" / "book" / "results"
    status, _, errors = says("run", "tiny", "--quick", "--out", out)
    assert status == 1
    assert errors == ["highway: --quick needs --out FOLDER outside the book's results, which it never replaces"]
    assert not out.exists()


# Verify finds what is wrong


def test_a_quick_run_spares_a_full_one_in_the_same_place(tiny, says, tmp_path):
    place = tmp_path / "mine"
    assert says("run", "tiny", "--out", place)[0] == 0
    before = {file.name: file.read_bytes() for file in (place / "tiny").iterdir()}
    status, _, errors = says("run", "tiny", "--quick", "--out", place)
    assert status == 1
    assert errors == [f"highway: {place / 'tiny'} holds a full run, which --quick spares: choose another --out"]
    assert {file.name: file.read_bytes() for file in (place / "tiny").iterdir()} == before


def test_a_quick_run_spares_the_finished_runs_of_a_full_one(tiny, says, monkeypatch, tmp_path):
    place = tmp_path / "mine"
    with monkeypatch.context() as patch:
        patch.setattr(experiments, "train_once", interrupted_after_one(experiments.train_once))
        assert says("run", "tiny", "--out", place)[0] == 130
    finished = sorted((place / ".tiny.partial").glob("*.run"))
    assert len(finished) == 1
    status, _, errors = says("run", "tiny", "--quick", "--out", place)
    assert status == 1
    assert "which --quick spares" in errors[0]
    assert sorted((place / ".tiny.partial").glob("*.run")) == finished


def interrupted_after_one(train_once):
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return train_once(*arguments)

    return interrupted


@pytest.mark.skipif(os.name != "posix", reason="symbolic links of POSIX")
@pytest.mark.parametrize("target", ["folder", "nothing"])
def test_a_link_in_the_place_of_a_result_is_replaced(tiny, says, tmp_path, target):
    (tmp_path / "folder").mkdir()
    tiny.mkdir()
    (tiny / "tiny").symlink_to(tmp_path / target)
    assert says("run", "tiny")[0] == 0
    assert says("run", "tiny")[0] == 0
    assert (tiny / "tiny" / "record.json").is_file()
    assert (tmp_path / "folder").is_dir()


def test_an_unreadable_mnist_file_is_named_and_the_others_are_checked(tiny, stored, says, monkeypatch):
    def refused(*arguments):
        raise PermissionError(13, "Permission denied", "train-images")

    assert says("run", "tiny")[0] == 0
    monkeypatch.setattr("highway.data.mnist_is_present", lambda: True)
    monkeypatch.setattr("highway.data.mnist", refused)
    status, _, errors = says("verify")
    assert status == 1
    assert errors[0] == ("highway: train-images cannot be used (Permission denied); make room or give the right to it")


def test_a_path_that_the_terminal_cannot_write_is_no_traceback(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; from highway.cli import main; sys.exit(main())", "verify", "--out", "ü"],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "\\xfc" in ended.stderr


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def seal(folder: Path, change=lambda record: None) -> None:
    """Make the record fit the files as they are now, and change it."""
    path = folder / "record.json"
    record = json.loads(path.read_text())
    record["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in record["files"]}
    change(record)
    path.write_text(json.dumps(record))


def test_verify_finds_a_flipped_bit_and_checks_the_others(copied, says):
    path = copied / "first-net" / "plain-512-default.safetensors"
    flip_a_bit(path)
    status, out, errors = says("verify", "first-net", "depth20", "--out", copied)
    assert status == 1
    assert len(errors) == 1
    assert f"{path} is damaged: its SHA-256" in errors[0]
    assert errors[0].endswith(f"run `highway run first-net --out {copied}`")
    assert any(line.startswith("depth20: highway-50-he comes out again") for line in out)
    assert out[-1] == "verify: 1 wrong, named on standard error"


def test_verify_finds_weights_that_are_not_those_of_the_record(copied, says):
    one, other = (copied / "depth20" / f"highway-50-{init}.safetensors" for init in ("default", "he"))
    shutil.copy(one, other)
    seal(copied / "depth20")
    status, _, errors = says("verify", "depth20", "--out", copied)
    assert status == 1
    assert f"{other}: its accuracy on the " in errors[0]


@pytest.mark.parametrize("split", ["sample", "test"])
def test_verify_finds_an_accuracy_that_does_not_come_out(copied, says, split):
    def flatter(record):
        record["networks"][0]["accuracy"][split] += 0.001

    seal(copied / "first-net", flatter)
    status, _, errors = says("verify", "first-net", "--out", copied)
    assert status == 1
    assert f"plain-512-default.safetensors: its accuracy on the {split} digits is 0.9" in errors[0]


def test_verify_finds_a_network_of_another_experiment(copied, says):
    seal(copied / "first-net", lambda record: record["networks"][0]["spec"].update(width=7))
    status, _, errors = says("verify", "first-net", "--out", copied)
    assert status == 1
    assert "plain-512-default is no network of its configuration" in errors[0]


def test_verify_finds_a_record_without_its_networks(copied, says):
    seal(copied / "first-net", lambda record: record["networks"].clear())
    status, _, errors = says("verify", "first-net", "--out", copied)
    assert status == 1
    assert "it lists the networks [], and those kept are ['plain-512-default']" in errors[0]


@pytest.mark.skipif(os.name != "posix", reason="homes of POSIX")
def test_a_home_that_is_not_there(tiny, says, monkeypatch):
    assert says("run", "tiny")[0] == 0
    monkeypatch.setenv("HIGHWAY_DATA", "~nobody-of-this-name/x")
    status, _, errors = says("verify")
    assert status == 1
    assert "HIGHWAY_DATA names a home that is not there" in errors[0]


def test_verify_finds_what_is_missing_and_what_is_too_much(copied, says):
    shutil.rmtree(copied / "first-net")
    (copied / "old-experiment").mkdir()
    status, _, errors = says("verify", "--out", copied)
    assert status == 1
    assert f"highway: {copied / 'first-net' / 'record.json'} is missing; run `highway run first-net --out" in errors[0]
    assert errors[-1] == f"highway: {copied / 'old-experiment'} belongs to no experiment of the catalogue; delete it"


def test_a_quick_result_does_not_count_among_the_books(copied, says, monkeypatch):
    monkeypatch.setenv(results.FOLDER_VARIABLE, str(copied))
    status, _, errors = says("verify", "first-net")
    assert status == 1
    assert "is stale: its configuration is not that of the catalogue; run `highway run first-net`" in errors[0]


def test_the_committed_results_verify(says, monkeypatch):
    monkeypatch.delenv(results.FOLDER_VARIABLE, raising=False)
    status, out, errors = says("verify")
    assert (status, errors) == (0, [])
    assert out[-1] == "verify: all is right"


# A tiny experiment in full


def test_a_run_its_state_and_its_table(tiny, says):
    assert "missing" in says("list")[1][2]
    status, out, errors = says("run", "tiny")
    assert (status, errors) == (0, [])
    assert out[-1].startswith(f"tiny: stored in {tiny / 'tiny'} after ")
    assert f"fresh, {results.load('tiny').record['date'][:10]}" in says("list")[1][2]
    status, out, _ = says("table")
    assert status == 0
    assert out[0] == "tiny: A tiny one"
    path = tiny / "tiny" / "history.csv"
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged" in says("list")[1][2]
    status, out, errors = says("table", "tiny")
    assert (status, out) == (1, [])
    assert errors[0].endswith("run `highway run tiny`")


def test_another_configuration_makes_a_result_stale(tiny, says, monkeypatch):
    assert says("run", "tiny")[0] == 0
    monkeypatch.setattr(experiments, "CATALOGUE", {"tiny": replace(TINY, epochs=3)})
    assert "stale" in says("list")[1][2]
    assert says("verify", "tiny")[0] == 1


def test_a_kind_that_is_no_more_makes_a_result_stale(tiny, says, monkeypatch):
    assert says("run", "tiny")[0] == 0
    path = tiny / "tiny" / "record.json"
    record = json.loads(path.read_text())
    record["configuration"]["networks"][1]["kind"] = "recurrent"
    record["configuration_sha256"] = results.configuration_sha256(record["configuration"])
    path.write_text(json.dumps(record))
    assert "stale" in says("list")[1][2]
    for command in ("verify", "table"):
        status, _, errors = says(command, "tiny")
        assert status == 1
        assert errors == [
            f"highway: {path} is stale: the code that trains and measures its networks has changed since; "
            f"run `highway run tiny`"
        ]
    assert says("run", "--all")[0] == 0
    assert "fresh" in says("list")[1][2]


def test_a_run_that_measures_the_cost_too(tiny, says, monkeypatch):
    assert says("run", "tiny")[0] == 0
    assert "cost" not in results.load("tiny").record["configuration"]
    monkeypatch.setattr(experiments, "CATALOGUE", {"tiny": replace(TINY, cost=True)})
    assert "stale" in says("list")[1][2]
    assert says("run", "tiny")[0] == 0
    result = results.load("tiny")
    assert result.record["configuration"]["cost"] is True
    assert list(result.table("cost")["network"]) == ["highway-5", "plain-5"]
    assert "fresh" in says("list")[1][2]


def test_all_runs_what_has_no_fresh_result(tiny, says, monkeypatch):
    monkeypatch.setattr(experiments, "CATALOGUE", {"tiny": TINY, "twin": replace(TINY, name="twin")})
    assert says("run", "tiny")[0] == 0
    before = (tiny / "tiny" / "record.json").stat().st_mtime_ns
    status, out, _ = says("run", "--all")
    assert status == 0
    assert [line.split(":")[0] for line in out] == ["twin"]
    assert (tiny / "tiny" / "record.json").stat().st_mtime_ns == before


def test_the_same_run_gives_the_same_bytes(tiny, says, tmp_path):
    for out in ("one", "two"):
        assert says("run", "tiny", "--out", tmp_path / out)[0] == 0
    for path in (tmp_path / "one" / "tiny").iterdir():
        if path.name != "record.json":
            assert path.read_bytes() == (tmp_path / "two" / "tiny" / path.name).read_bytes()


def test_verify_with_mnist_and_without(tiny, stored, says, monkeypatch):
    held_out = TensorDataset(torch.randn(7, 1, 28, 28), torch.arange(7))
    monkeypatch.setattr(data, "sample", lambda part, standardise: held_out)
    monkeypatch.setattr(
        experiments,
        "load_data",
        lambda experiment: tiny_data(experiment) | {"test": data.mnist("test"), "sample": held_out},
    )
    assert says("run", "tiny")[0] == 0
    status, out, errors = says("verify", "tiny")
    assert (status, errors) == (0, [])
    assert "on 7 sample digits" in out[1]
    assert "on 20 test digits" in out[1]
    (stored / "t10k-images-idx3-ubyte").unlink()
    status, out, errors = says("verify", "tiny")
    assert (status, errors) == (0, [])
    assert out[1] == f"tiny: skipped the MNIST test set, which is not in {stored.parents[1]}"
    assert "on 7 sample digits" in out[2]
    assert "test digits" not in "".join(out)


@pytest.fixture
def ctrl_c():
    """Have the signal of Ctrl-C raise KeyboardInterrupt, which it does not in a process started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("interruption", ["KeyboardInterrupt", "SIGINT"])
def test_ctrl_c(tiny, says, monkeypatch, ctrl_c, interruption):
    train_once, calls = experiments.train_once, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            if interruption == "KeyboardInterrupt":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)
        return train_once(*arguments)

    monkeypatch.setattr(experiments, "train_once", interrupted)
    status, _, errors = says("run", "tiny")
    assert status == 130
    assert errors == ["highway: interrupted; running it again goes on from the finished training runs"]
    status, _, errors = says("run", "tiny")
    assert (status, errors) == (0, ["highway: tiny goes on after 2 finished training runs"])
    assert len(calls) == 3 + 6


# Errors that a user can cause


def test_a_run_that_diverges_is_a_result(tiny, says, monkeypatch):
    monkeypatch.setattr(experiments, "CATALOGUE", {"tiny": replace(TINY, rates=(1e30,))})
    assert says("run", "tiny")[0] == 0
    assert set(results.load("tiny").history["epoch"]) == {0}
    status, out, errors = says("verify", "tiny")
    assert (status, errors) == (0, [])
    assert out[1] == "tiny: it stores no network"
    assert says("table", "tiny")[0] == 0


def test_a_run_without_data(says, monkeypatch, tmp_path):
    monkeypatch.setenv("HIGHWAY_DATA", str(tmp_path / "nowhere"))
    status, _, errors = says("run", "first-net", "--out", tmp_path / "out")
    assert status == 1
    assert len(errors) == 1
    assert "is missing: HIGHWAY_DATA must name a folder" in errors[0]


def test_a_run_beside_another(tiny, says):
    assert says("run", "tiny")[0] == 0
    with results.Workspace("tiny", {"name": "tiny", "networks": []}):
        status, _, errors = says("run", "tiny")
    assert status == 1
    assert errors == [
        f"highway: {tiny / 'tiny'} is being written by another `highway run tiny`; wait until it has ended"
    ]
    assert len(results.load("tiny").history) > 0


def test_a_run_into_a_place_that_cannot_be(tiny, says, tmp_path):
    (tmp_path / "file").write_text("in the way")
    status, _, errors = says("run", "tiny", "--out", tmp_path / "file" / "out")
    assert status == 1
    assert len(errors) == 1
    assert "cannot be written (Not a directory); make room or give the right to write there" in errors[0]


@pytest.mark.parametrize("command", ["list", "verify", "table", "run"])
def test_without_the_book(says, monkeypatch, tmp_path, command):
    monkeypatch.delenv(results.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(results, "PACKAGE", tmp_path / "code" / "highway")
    status, _, errors = says(command, *(["first-net"] if command == "run" else []))
    assert status == 1
    assert all("clone the book" in error for error in errors)
    assert errors


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("end", ["closed", "full"])
def test_standard_output_that_takes_nothing(tmp_path, end):
    if end == "full":
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full on this system")
        write = os.open("/dev/full", os.O_WRONLY)
    else:
        read, write = os.pipe()
        os.close(read)
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; from highway.cli import main; sys.exit(main())", "list"],
        stdout=write, stderr=subprocess.PIPE, text=True, env=os.environ | {results.FOLDER_VARIABLE: str(tmp_path)},
    )  # fmt: skip
    os.close(write)
    assert ended.returncode == 1
    full = "highway: standard output cannot be used (No space left on device); make room or give the right to it\n"
    assert ended.stderr == ("" if end == "closed" else full)


# Killed, and going on

KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_cli import TINY, tiny_data
from highway import cli, experiments

experiments.CATALOGUE, experiments.load_data = {{"tiny": TINY}}, tiny_data
train_once, calls = experiments.train_once, 0

def train_and_die(*arguments):
    global calls
    calls += 1
    if calls == {nth}:  # after the first epoch of this training run
        arguments = (*arguments[:-1], lambda epochs, loss: os.kill(os.getpid(), signal.SIGKILL))
    return train_once(*arguments)

experiments.train_once = train_and_die
cli.main(["run", "tiny"])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_run_killed_twice_goes_on_to_the_same_bytes(tiny, says, monkeypatch, tmp_path):
    for nth in (2, 4):  # the second training run; then, one being finished, the fifth
        code = KILLED.format(tests=str(Path(__file__).parent), nth=nth)
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -signal.SIGKILL
        with pytest.raises(results.ResultError, match="is missing"):
            results.load("tiny")
    train_once, calls = experiments.train_once, []
    monkeypatch.setattr(
        experiments, "train_once", lambda *arguments: (calls.append(arguments), train_once(*arguments))[1]
    )
    status, _, errors = says("run", "tiny")
    assert (status, errors) == (0, ["highway: tiny goes on after 4 finished training runs"])
    assert len(calls) == 8 - 4
    assert says("run", "tiny", "--out", tmp_path / "at once")[0] == 0
    assert len(calls) == 4 + 8
    for path in (tiny / "tiny").iterdir():
        if path.name != "record.json":
            assert path.read_bytes() == (tmp_path / "at once" / "tiny" / path.name).read_bytes()
