from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
sys.modules[{module!r}] = None  # as if it were not installed
from basecagg.errors import MissingExtraError
try:
    {statement}
except MissingExtraError as error:
    print(error)
"""


def answer_without(module: str, statement: str) -> str:
    program = WITHOUT.format(module=module, statement=statement)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return run.stdout


def test_without_torch_the_install_command_is_named() -> None:
    answer = answer_without("torch", "import basecagg.learning.partition")
    needed, command = "training models needs the optional part 'learn'", "pip install '.[learn]'"
    assert answer == f"{needed}: {command} from a checkout of basecagg\n"


def test_without_scikit_learn_digits_name_the_install_command() -> None:
    statement = "from basecagg.learning import load_dataset; load_dataset('digits')"
    assert "pip install '.[learn]'" in answer_without("sklearn.datasets", statement)
