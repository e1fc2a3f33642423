"""What the kit says about a storage backend, part by part, for people and for programs. It runs nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

PART_NAMES = ("basic", "threads", "machine", "opening", "persistent", "shared", "scan", "capacity", "buffers", "raw")
"""The parts of the kit, in the order in which they run."""

_TEXT_LINES = 5


class Outcome(StrEnum):
    """How one test, or one part of the kit, went."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


class Finding(NamedTuple):
    """One test. `text`: what was wrong, or why it was skipped; `traceback`: of a failure."""

    part: str
    test: str
    outcome: Outcome
    text: str = ""
    traceback: str = ""


class Part(NamedTuple):
    """The tests of one part of the kit. It is as bad as its worst test, and skipped where all are."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> Outcome:
        outcomes = {finding.outcome for finding in self.findings}
        return next(
            outcome for outcome in (Outcome.FAILED, Outcome.NOT_RUN, Outcome.PASSED, Outcome.SKIPPED) if outcome in outcomes
        )

    def count(self, outcome: Outcome) -> int:
        return sum(finding.outcome is outcome for finding in self.findings)

    @property
    def skipped_because(self) -> list[str]:
        """The reasons, each once."""
        return list(dict.fromkeys(finding.text for finding in self.findings if finding.outcome is Outcome.SKIPPED))


@dataclass(frozen=True, slots=True)
class StorageVerdict:
    """All findings about one backend, in the order in which the tests ran."""

    kind: str
    provider: str
    capabilities: frozenset[str]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every test that applies has passed."""
        return bool(self.findings) and not any(self._bad())

    @property
    def parts(self) -> Sequence[Part]:
        names = dict.fromkeys(finding.part for finding in self.findings)
        return [Part(name, tuple(finding for finding in self.findings if finding.part == name)) for name in names]

    def render(self) -> str:
        """For people."""
        width = max(map(len, PART_NAMES)) + 2
        lines = [f"storage backend {self.kind} of {self.provider}"]
        for part in self.parts:
            lines += [f"  {part.name:<{width}}{line}" if not at else line for at, line in enumerate(_lines(part))]
        bad = sum(1 for _ in self._bad())
        return "\n".join([*lines, "it conforms" if self.ok else f"it does NOT conform: {bad} of {_tests(len(self.findings))}"])

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "storage": self.kind,
            "provider": self.provider,
            "capabilities": sorted(self.capabilities),
            "ok": self.ok,
            "parts": [
                {
                    "part": part.name,
                    "outcome": part.outcome,
                    "tests": [
                        {"test": f.test, "outcome": f.outcome, "text": f.text, "traceback": f.traceback} for f in part.findings
                    ],
                }
                for part in self.parts
            ],
        }

    def _bad(self) -> Iterator[Finding]:
        return (finding for finding in self.findings if finding.outcome in (Outcome.FAILED, Outcome.NOT_RUN))


def _lines(part: Part) -> Iterator[str]:
    """The part's own line without its name, then one for each test that failed."""
    passed, failed, not_run = (part.count(outcome) for outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.NOT_RUN))
    reasons = "; ".join(part.skipped_because)
    match part.outcome:
        case Outcome.PASSED:
            yield f"passed   {_tests(passed)}" + (f" ({part.count(Outcome.SKIPPED)} skipped: {reasons})" if reasons else "")
        case Outcome.SKIPPED:
            yield f"skipped  {reasons}"
        case Outcome.NOT_RUN:
            yield f"not run  {_tests(not_run)}"
        case Outcome.FAILED:
            yield f"FAILED   {failed} of {_tests(len(part.findings))}" + (f" ({not_run} not run)" if not_run else "")
    for finding in part.findings:
        if finding.outcome is Outcome.FAILED:
            first, *more = finding.text.splitlines()[:_TEXT_LINES] or [""]
            yield f"      {finding.test}: {first}"
            yield from (f"        {line}" for line in more)


def _tests(n: int) -> str:
    return f"{n} test{'' if n == 1 else 's'}"
