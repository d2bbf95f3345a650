"""The command line: `highway list`, `run`, `verify` and `table`."""

import argparse
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .experiments import Experiment
    from .results import Result


class CommandError(Exception):
    """A command asks for what cannot be; the message says what can."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 for an error, 130 for an interruption.

    An error that a user can cause ends in one line on standard error, never in a traceback. Wrong usage raises
    SystemExit(2) with the usage printed, as argparse does.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold what the terminal's encoding lacks
    arguments = _parser().parse_args(argv)
    try:
        # These import torch, which takes seconds: after the arguments have been read, so that --help need not wait.
        from .data import DataError
        from .results import ResultError

        try:
            status = arguments.command(arguments)
            if sys.stdout is not None:
                sys.stdout.flush()
            return status
        except BrokenPipeError:  # the reader, such as `head`, has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except (CommandError, DataError, ResultError, OSError) as error:
            return _complain(_reason(error))
        except RuntimeError as error:
            if "home directory" not in str(error):
                raise
            return _complain(f"HIGHWAY_DATA names a home that is not there ({error}); give the folder's full path")
    except KeyboardInterrupt:
        again = "; running it again goes on from the finished training runs" if arguments.command is run else ""
        _complain(f"interrupted{again}")
        return 130


def _reason(error: Exception) -> str:
    """Return an error's text; where the system refuses a file or folder, name it, why, and the remedy."""
    if not isinstance(error, OSError):
        return str(error)
    what = error.filename or "standard output"
    return f"{what} cannot be used ({error.strerror or error}); make room or give the right to it"


def _complain(text: str) -> int:
    print(f"highway: {' '.join(text.split())}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="highway", description="Run and check the cached experiments of the book.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--out", type=Path, metavar="FOLDER", help="folder of results (default: the book's)")

    command = commands.add_parser("list", parents=[folder], help="name the experiments and the state of their results")
    command.set_defaults(command=list_results)

    command = commands.add_parser("run", parents=[folder], help="run an experiment and store its result")
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", metavar="NAME", help="an experiment's name, as in `highway list`")
    which.add_argument("--all", action="store_true", help="every experiment that has no fresh result")
    command.add_argument(
        "--quick", action="store_true", help="a version of seconds, on the sample of 5,000 digits; needs --out"
    )
    command.set_defaults(command=run)

    for name, action, text in (
        ("verify", verify, "check stored results and evaluate their networks again"),
        ("table", table, "print stored results as a table"),
    ):
        command = commands.add_parser(name, parents=[folder], help=text)
        command.add_argument("names", nargs="*", metavar="NAME", help="experiments (default: all)")
        command.set_defaults(command=action)
    return parser


def list_results(arguments: argparse.Namespace) -> int:
    """Print the name, the state of the result, the size and the title of every experiment."""
    from tabulate import tabulate

    from .experiments import CATALOGUE

    rows = []
    for experiment in CATALOGUE.values():
        epochs = experiment.total_epochs()
        state = _state(_allowed(experiment, arguments.out), arguments.out)
        rows.append([experiment.name, state, epochs // experiment.epochs, epochs, experiment.title])
    print(tabulate(rows, headers=["name", "result", "runs", "epochs", "title"]))
    return 0


def _state(allowed: "list[Experiment]", out: Path | None) -> str:
    """Return `fresh` and the date of a result of one of these configurations, or `missing`, `stale` or `damaged`."""
    from .results import ResultError

    try:
        return f"fresh, {_check(allowed, out).record['date'][:10]}"
    except ResultError as error:
        if not error.state:
            raise
        return error.state


def run(arguments: argparse.Namespace) -> int:
    """Run one experiment, or all that have no fresh result, with a progress bar, and store what comes out."""
    if arguments.quick and (arguments.out is None or _is_in_book(arguments.out)):
        raise CommandError("--quick needs --out FOLDER outside the book's results, which it never replaces")
    for experiment in _chosen([] if arguments.all else [arguments.name]):
        wanted = experiment.quick() if arguments.quick else experiment
        if arguments.quick:
            _spare_full_run(experiment, arguments.out)
        if not (arguments.all and _state([wanted], arguments.out).startswith("fresh")):
            _run(wanted, arguments.out)
    return 0


def _spare_full_run(experiment: "Experiment", out: Path) -> None:
    """Raise CommandError where a rehearsal would replace a full result, or the finished training runs of one."""
    from .results import configuration_sha256

    result, partial = out / experiment.name / "record.json", out / f".{experiment.name}.partial" / "state.json"
    for file in (result, partial):
        with suppress(OSError, ValueError, KeyError, TypeError):  # nothing there that a run could go on from
            found = json.loads(file.read_bytes())
            if (
                found["configuration"]["source"] != "sample"
                if file == result
                else found["configuration_sha256"] == configuration_sha256(experiment.configuration())
            ):
                raise CommandError(f"{file.parent} holds a full run, which --quick spares: choose another --out")


def _run(experiment: "Experiment", out: Path | None) -> None:
    from tqdm import tqdm

    from . import experiments
    from .results import Workspace

    def note(text: str) -> None:
        tqdm.write(f"highway: {text}", sys.stderr)

    with Workspace(experiment.name, experiment.configuration(), out, note) as workspace:
        if workspace.remembered():
            note(f"{experiment.name} goes on after {workspace.remembered()} finished training runs")
        with tqdm(total=experiment.total_epochs(), desc=experiment.name, unit="epoch", dynamic_ncols=True) as bar:

            def progress(epochs: int, text: str) -> None:
                bar.set_postfix_str(text, refresh=False)
                bar.update(epochs)

            outcome = experiments.run(experiment, workspace.checkpoint, progress)
        result = workspace.save(outcome.history, outcome.tables, outcome.arrays, outcome.weights, outcome.networks)
    print(f"{experiment.name}: stored in {result.path} after {result.record['wall_seconds']:.0f} s of training")


def verify(arguments: argparse.Namespace) -> int:
    """Check results from end to end, evaluate their stored networks again, and say what was checked and what was not.

    Exit status 1 if anything is wrong or missing, after all have been checked.
    """
    from .data import DataError
    from .experiments import CATALOGUE
    from .results import ResultError, results_folder

    wrong = 0
    folder = arguments.out or results_folder()
    for experiment in _chosen(arguments.names):
        try:
            result = _check(_allowed(experiment, arguments.out), arguments.out)
            print(f"{experiment.name}: record, configuration, code and {len(result.files)} files are right")
            for line in _evaluate_again(experiment, result):
                print(f"{experiment.name}: {line}")
        except (DataError, ResultError, OSError) as error:
            wrong += 1
            _complain(_reason(error))
    for path in sorted(folder.iterdir()) if folder.is_dir() and not arguments.names else []:
        if path.is_dir() and not path.name.startswith(".") and path.name not in CATALOGUE:
            wrong += 1
            _complain(f"{path} belongs to no experiment of the catalogue; delete it")
    print(f"verify: {wrong} wrong, named on standard error" if wrong else "verify: all is right")
    return 1 if wrong else 0


def _evaluate_again(experiment: "Experiment", result: "Result") -> Iterator[str]:
    """Evaluate the stored networks on the digits that are here, and say so a line at a time.

    Raises ResultError where a network is none of the experiment's, or a recorded accuracy does not come out exactly.
    """
    from safetensors import SafetensorError
    from torch import nn

    from .data import Batches, mnist, mnist_folder, mnist_is_present, sample
    from .experiments import load_data, rebuild, repeatable
    from .results import ResultError, run_command
    from .training import evaluate_model

    record = result.record
    again = run_command(experiment.name, result.path.parent, record["configuration"]["source"] == "sample")
    tests = result.history[(result.history["split"] == "test") & (result.history["seed"] == experiment.seeds[0])]
    due = {f"{run.network}-{run.init}" for run in tests.itertuples()} & set(experiment.keep)
    listed = {network["weights"] for network in record["networks"]}
    if listed != due:
        raise ResultError(
            f"{result.path / 'record.json'} is damaged: it lists the networks {sorted(listed)}, and those kept are "
            f"{sorted(due)}; run `{again}`"
        )
    if not record["networks"]:
        yield "it stores no network"
        return
    if record["configuration"]["source"] == "sample":
        splits = {split: load_data(experiment.quick())[split] for split in ("sample", "test")}
    else:
        splits = {"sample": sample("held out", experiment.standardise)}
        if mnist_is_present():
            splits["test"] = mnist("test", experiment.standardise)
        else:
            yield f"skipped the MNIST test set, which is not in {mnist_folder()[0]}"
    for network in record["networks"]:
        name = network["weights"]
        if network["spec"] not in record["configuration"]["networks"]:
            raise ResultError(
                f"{result.path / 'record.json'} is damaged: {name} is no network of its configuration; run `{again}`"
            )
        try:
            model = rebuild(network, result.weights(name))
        except (RuntimeError, ValueError, SafetensorError) as error:
            raise ResultError(
                f"{result.path / name}.safetensors does not hold the weights of its network ({error}); run `{again}`"
            ) from error
        with repeatable(experiment.threads):
            for split, dataset in splits.items():
                _, accuracy = evaluate_model(model, Batches(dataset, 1000), nn.CrossEntropyLoss())
                if accuracy != network["accuracy"].get(split):
                    raise ResultError(
                        f"{result.path / name}.safetensors: its accuracy on the {split} digits is {accuracy}, and the "
                        f"record says {network['accuracy'].get(split)}; run `{again}`"
                    )
        seen = ", ".join(f"{network['accuracy'][split]:.4f} on {len(splits[split])} {split} digits" for split in splits)
        yield f"{name} comes out again: {seen}"


def table(arguments: argparse.Namespace) -> int:
    """Print a summary of each result by network and initialisation; exit status 1 where one cannot be had."""
    from .results import ResultError
    from .tables import markdown, summary

    status = 0
    for experiment in _chosen(arguments.names):
        try:
            history = _check(_allowed(experiment, arguments.out), arguments.out).history
        except ResultError as error:
            status = _complain(str(error))
            continue
        print(f"{experiment.name}: {experiment.title}\n\n{markdown(summary(history))}\n")
    return status


def _chosen(names: list[str]) -> "list[Experiment]":
    """Return the experiments of these names, or all; CommandError names those that there are."""
    from .experiments import CATALOGUE, get_experiment

    try:
        return [get_experiment(name) for name in names or CATALOGUE]
    except ValueError as error:
        raise CommandError(error) from error


def _allowed(experiment: "Experiment", out: Path | None) -> "list[Experiment]":
    """Return the configurations whose results count: outside the book's results, that of a quick run too."""
    return [experiment] if out is None or _is_in_book(out) else [experiment, experiment.quick()]


def _check(allowed: "list[Experiment]", out: Path | None) -> "Result":
    from .results import check

    return check(allowed[0].name, [experiment.configuration() for experiment in allowed], out)


def _is_in_book(folder: Path) -> bool:
    """Whether a folder is the book's results, or the folder that stands for them, or lies inside."""
    from .results import PACKAGE, ResultError, results_folder

    books = [PACKAGE.parents[1] / "book" / "results"]
    with suppress(ResultError):
        books.append(results_folder())
    real = Path(os.path.realpath(folder))
    same = any(  # by another name: a disk may ignore case, or be mounted twice
        path.samefile(book) for book in books if book.exists() for path in (real, *real.parents) if path.exists()
    )
    return same or any(real.is_relative_to(os.path.realpath(book)) for book in books)
