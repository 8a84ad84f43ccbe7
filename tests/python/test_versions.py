"""Call sites, breadcrumbs and exceptions on every CPython of this machine."""

import interpreters
import pytest
import test_api
import test_crumbs
import test_frames
from conftest import launcher

interpreter = interpreters.interpreter


@pytest.fixture(scope="session")
def launch(tmp_path_factory, interpreter):
    return launcher(tmp_path_factory, interpreter)


for module in (test_frames, test_crumbs):
    globals().update(
        {name: test for name, test in vars(module).items() if name.startswith("test_")}
    )
test_manual_records = test_api.test_manual_records
test_wrong_arguments_raise = test_api.test_wrong_arguments_raise
test_an_unhandled_exception_is_kept = test_api.test_an_unhandled_exception_is_kept
test_system_exit_is_no_exception = test_api.test_system_exit_is_no_exception


def test_frames_are_walked_raw(launch):
    (ran,) = launch("import fr\nresult(fr.status()['python']['frames'])", n=0)
    assert ran.result == "raw"
