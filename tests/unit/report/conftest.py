from dataclasses import replace

import pytest
from tests.unit.report.synthetic import Chain, make_report

from peakfold.report import model as m


@pytest.fixture(scope="session")
def chain() -> Chain:
    return Chain()


@pytest.fixture(scope="session")
def report() -> m.Report:
    return make_report()


@pytest.fixture(scope="session")
def bare() -> m.Report:
    """Nothing was run: every figure that can be missing is."""
    return m.Report("chain")


@pytest.fixture(scope="session")
def bad(report: m.Report) -> m.Report:
    """Over its budget, over its time, not equal."""
    return replace(
        report,
        limits=m.Limits(1_000, 1.01, ""),
        equal=m.Equality(False, 0.5, 1e-9, "reduced to 2 of 8", 3, False),
        texts=m.Texts(),
    )
