from ....support.fixtures.coroutines import clusters, engines_are_killed_as_stand_ins, pytest_pyfunc_call, start  # noqa: F401 (first of all)
