"""Every transcript in `scenarios/` is what happens. `pytest tests/consensus --rewrite` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consensus.script import replay

_SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("scenario", _SCENARIOS, ids=lambda path: path.stem)
def test_scenario_goes_as_its_transcript_says(scenario: Path, is_rewriting: bool) -> None:
    happened = replay(scenario)
    if is_rewriting:
        scenario.write_text(happened)
    assert happened == scenario.read_text()
