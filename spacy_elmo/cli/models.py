"""Models as the commands load them, and directories as they write them."""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ElmoError, ElmoWarning, Errors, detail_of

if TYPE_CHECKING:
    from ..lm.config import InitialState
    from ..weights.formats import LoadedModel
    from ..weights.local_files import LocalFiles

SOURCE_HELP = (
    "Directory, zip file, options.json::weights.hdf5, address or short name of a model, such as ai2-small, nlpl:209 or "
    "en_elmo_sm, which comes with spacy-elmo."
)


def load_noting(
    files: LocalFiles, initial_state: InitialState | None = None, with_softmax: bool = False
) -> LoadedModel:
    """Load a model without warnings: what is warned of stands among its notes.

    files (LocalFiles): From `locate`.
    initial_state (str | None), with_softmax (bool): As for `load_model`.
    RETURNS (LoadedModel): The model.
    RAISES (WeightsError): As `load_files`.
    """
    from ..weights.formats import load_files

    # The filters of warnings are the whole process's, which is a command's own.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ElmoWarning)
        return load_files(files, initial_state, with_softmax)


def print_notes(notes: list[str]) -> None:
    """Print what was assumed and what was ignored, a line each."""
    for note in notes:
        print(f"- {note}")


def require_new(directory: Path) -> None:
    """Say before the work, not after it, that a directory is in use.

    RAISES (ElmoError): E430 if there is a file, or a directory that is not empty.
    """
    if directory.is_dir():
        if any(directory.iterdir()):
            raise ElmoError(Errors.E430.format(path=directory, problem="is not empty"))
    elif os.path.lexists(directory):
        raise ElmoError(Errors.E430.format(path=directory, problem="is no directory"))


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Write a directory beside its place and move it there when it is whole.

    directory (Path): The directory, new or empty.
    YIELDS (Path): Where to write.
    RAISES (ElmoError): E406 if it cannot be written, E430 if it is in use.
    """
    require_new(directory)
    fresh = directory.absolute().with_name(f".{directory.absolute().name}.{secrets.token_hex(4)}.part")
    try:
        fresh.mkdir(parents=True)
        yield fresh
        if directory.is_dir():
            directory.rmdir()
        os.replace(fresh, directory)
    except OSError as error:
        raise ElmoError(Errors.E406.format(path=directory, detail=detail_of(error))) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
