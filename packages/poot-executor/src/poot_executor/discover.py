"""Finding devices and commands that other distributions provide, through entry points.

Only the entry point that is needed is loaded. A distribution that is broken is reported with the
error that its import raised, and never hides the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from poot_executor.device import Device, Driver, Found, Missing
from poot_executor.errors import DeviceNotFound, DuplicateDevice, PootError
from poot_executor.settings import DeviceSettings

DEVICES = "poot.devices"
COMMANDS = "poot.commands"
PREFERRED = ("ptx", "rocm", "vulkan", "wgpu")
"""The order in which real GPUs are tried; GPUs of other distributions follow by name."""
NPUS = ("xdna", "vpu")
BY_NAME = "only by name"
BRIEF = 72
"""Characters of a shortened reason, about as many as a table's column has."""


@dataclass(frozen=True, slots=True)
class Status:
    """What one installed entry point has to offer.

    `entries` is what its driver's probe said; `error` is why it could not say anything. `refused`
    maps selectors that were tried to why they did not open, `opened` lists those that did; both are
    empty where nothing was tried. `automatic` drivers may be chosen by "auto".
    """

    name: str
    distribution: str
    version: str
    entries: tuple[Found | Missing, ...]
    error: str | None
    automatic: bool
    opened: tuple[str, ...]
    refused: Mapping[str, str]

    @property
    def found(self) -> tuple[Found, ...]:
        """The devices that it found."""
        return tuple(entry for entry in self.entries if isinstance(entry, Found))


@dataclass(frozen=True, slots=True)
class Choice:
    """The device that was opened, and what "auto" passed over on the way, each with its whole reason.

    `why` is what made "auto" choose it; "" for a device that was asked for by name. As text it is one line, with its
    reasons shortened.
    """

    name: str
    selector: str
    description: str
    skipped: tuple[tuple[str, str], ...]
    why: str = ""

    def __str__(self) -> str:
        device = f"{self.name}:{self.selector}" if self.selector else self.name
        line = f"device {device} ({self.description})" if self.description else f"device {device}"
        if self.why:
            line += f", {self.why}"
        skipped = [f"{name} ({brief(reason)})" for name, reason in self.skipped if reason != BY_NAME]
        return _one_line(f"{line}; passed over {'; '.join(skipped)}" if skipped else line)


def installed(points: Iterable[EntryPoint] | None = None) -> dict[str, EntryPoint]:
    """Every device entry point by name, sorted. Nothing is imported.

    `points` replaces what is installed. Raises DuplicateDevice naming both distributions.
    """
    return _by_name(entry_points(group=DEVICES) if points is None else points)


def commands(points: Iterable[EntryPoint] | None = None) -> dict[str, EntryPoint]:
    """Every subcommand of `poot` that a distribution adds, by name. As `installed`."""
    return _by_name(entry_points(group=COMMANDS) if points is None else points)


def survey(
    settings: DeviceSettings,
    points: Iterable[EntryPoint] | None = None,
    *,
    try_open: bool = False,
) -> list[Status]:
    """What every installed device finds, by name. `try_open` opens and closes each one found."""
    return [_status(point, settings, try_open) for point in installed(points).values()]


def open_device(
    request: str, settings: DeviceSettings, points: Iterable[EntryPoint] | None = None
) -> tuple[Device, Choice]:
    """Open "auto", or exactly "NAME" or "NAME:SELECTOR".

    "auto" prefers real GPUs (ptx, rocm, vulkan, wgpu, then others by name), then NPUs, then
    `vpu:cpu`, then software Vulkan and wgpu; a driver with `automatic = False` is never chosen by
    it. Raises DeviceNotFound, listing what there is, where nothing opens; a device that was asked
    for by name is never replaced by another.
    """
    known = installed(points)
    name, _, selector = request.partition(":")
    if request == "auto":
        return _open_automatic(known, settings)
    if name not in known:
        there = ", ".join(known) or "none"
        raise DeviceNotFound(
            f"there is no device {request!r}: installed are {there}. "
            'A device is NAME or NAME:SELECTOR, or "auto"; one more is a distribution away, '
            'such as pip install "poot-llm[npu]"'
        )
    try:
        device = _driver(known[name]).open(selector, settings)
    except Exception as error:
        raise DeviceNotFound(
            f"device {request!r} did not open: {_reason(error)}. {_listing(known, settings)}"
        ) from error
    return device, Choice(name, selector, _description(known[name], selector), ())


def _open_automatic(known: Mapping[str, EntryPoint], settings: DeviceSettings) -> tuple[Device, Choice]:
    """Try devices by rank. A distribution is probed only once nothing that is known could come before what it may have:
    where the first GPU opens, no other runtime is loaded."""
    skipped: list[tuple[str, str]] = []
    candidates: list[tuple[str, Found]] = []
    unprobed = sorted(known, key=_best_rank)
    while unprobed or candidates:
        if candidates and (not unprobed or auto_rank(*candidates[0]) < _best_rank(unprobed[0])):
            name, found = candidates.pop(0)
            try:
                device = _driver(known[name]).open(found.selector, settings)
            except Exception as error:  # noqa: BLE001 - whatever it raises is why it is passed over
                skipped.append((f"{name}:{found.selector}", _reason(error)))
            else:
                return device, Choice(name, found.selector, found.description, tuple(skipped), _why(name, found))
        else:
            status = _status(known[unprobed.pop(0)], settings, try_open=False)
            lacking = _why_not(status)
            if lacking is None:
                candidates += [(status.name, found) for found in status.found]
                candidates.sort(key=lambda candidate: auto_rank(*candidate))
            else:
                skipped.append((status.name, lacking))
    tried = "; ".join(f"{name}: {reason}" for name, reason in skipped)
    raise DeviceNotFound(
        f"no device opened ({_one_line(tried) or 'no device distribution is installed'}). "
        'Install one, such as pip install "poot-llm[npu]", or name one with --device'
    )


def _best_rank(name: str) -> tuple[int, int, str]:
    """The rank of the best device that a distribution may turn out to have."""
    return auto_rank(name, Found("gpu", ""))


def _why_not(status: Status) -> str | None:
    """Why "auto" takes no device of a distribution; None where it may take one."""
    if status.error is not None:
        return status.error
    if not status.automatic:
        return BY_NAME
    reasons = [entry.reason for entry in status.entries if isinstance(entry, Missing)]
    return None if status.found else ", ".join(reasons) or "found no device"


def auto_rank(name: str, found: Found) -> tuple[int, int, str]:
    """Where a device stands in the order of "auto"; smaller is tried first, equals in the order of the probe."""
    place = PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)
    # The selectors of vpu begin with the kind of hardware; its GPU stands behind those that run poot's own kernels.
    if name == "vpu" and not found.selector.startswith("gpu"):
        return (2 if found.selector.startswith("cpu") else 1, NPUS.index(name), name)
    if name in NPUS and name != "vpu":
        return (1, NPUS.index(name), name)
    return (3 if found.software else 0, place, name)


def automatic_choice(statuses: Iterable[Status]) -> tuple[str, str] | None:
    """(name, selector) of what "auto" would open, of statuses that tried to open; None where nothing opened."""
    candidates = [
        (status.name, found)
        for status in statuses
        for found in status.found
        if status.automatic and found.selector in status.opened
    ]
    if not candidates:
        return None
    name, found = min(candidates, key=lambda candidate: auto_rank(*candidate))
    return name, found.selector


def brief(reason: str, most: int = BRIEF) -> str:
    """A reason's first clause in one line of at most `most` characters: what happened, without the details in brackets
    and without what to do about it. Whole, where it is short."""
    text = _one_line(reason)
    if len(text) <= most:
        return text
    ends = [text.find(mark) for mark in (" (", "; ", ". ", ", ", ": ")]
    # A clause of one word is the name of what follows, such as the type of an error; one in brackets is none.
    heads = [text[: max(end, 0)] for end in ends]
    clauses = [head for head in heads if " " in head and head.count("(") == head.count(")")]
    clause = min(clauses, key=len, default=text)
    return clause if len(clause) <= most else f"{clause[: most - 1].rstrip()}…"


def _why(name: str, found: Found) -> str:
    """What the place of a device in the order says of those before it, none of which opened."""
    whys = ("the first GPU that opens", "no GPU opens", "no GPU and no NPU opens", "nothing faster than software opens")
    return whys[auto_rank(name, found)[0]]


def _status(point: EntryPoint, settings: DeviceSettings, try_open: bool) -> Status:
    distribution, version = _distribution(point)
    try:
        driver = _driver(point)
        automatic = bool(getattr(driver, "automatic", True))
        entries = tuple(driver.probe())
    except Exception as raised:  # noqa: BLE001 - a broken distribution is reported, not raised
        return Status(point.name, distribution, version, (), _reason(raised), True, (), {})
    opened: list[str] = []
    refused: dict[str, str] = {}
    for found in (entry for entry in entries if isinstance(entry, Found) and try_open):
        try:
            driver.open(found.selector, settings).close()
            opened.append(found.selector)
        except Exception as raised:  # noqa: BLE001 - likewise
            refused[found.selector] = _reason(raised)
    return Status(point.name, distribution, version, entries, None, automatic, tuple(opened), refused)


def _driver(point: EntryPoint) -> Driver:
    """What an entry point names: a driver, or a class of one without arguments."""
    loaded = point.load()
    driver = loaded() if isinstance(loaded, type) else loaded
    lacking = [name for name in ("probe", "open") if not callable(getattr(driver, name, None))]
    if lacking:
        raise TypeError(f"{point.value} is no driver: it has no {' and no '.join(lacking)}")
    return driver


def _by_name(points: Iterable[EntryPoint]) -> dict[str, EntryPoint]:
    known: dict[str, EntryPoint] = {}
    for point in points:
        other = known.setdefault(point.name, point)
        if other is not point:
            raise DuplicateDevice(point.name, _distribution(other)[0], _distribution(point)[0])
    return dict(sorted(known.items()))


def _distribution(point: EntryPoint) -> tuple[str, str]:
    if point.dist is None:
        return "an unknown distribution", "unknown"
    return point.dist.name, point.dist.version


def _description(point: EntryPoint, selector: str) -> str:
    """What the probe calls the device that was opened; "" where it does not list it."""
    try:
        found = [entry for entry in _driver(point).probe() if isinstance(entry, Found)]
    except Exception:  # noqa: BLE001 - the device is open: a probe that fails now only costs its name
        return ""
    named = [entry for entry in found if entry.selector == selector] or found[:1]
    return named[0].description if named and (not selector or named[0].selector == selector) else ""


def _listing(known: Mapping[str, EntryPoint], settings: DeviceSettings) -> str:
    """What could be opened instead, in a sentence."""
    statuses = [_status(point, settings, try_open=False) for point in known.values()]
    there = [f"{s.name}:{f.selector} ({f.description})" for s in statuses for f in s.found]
    return f"There is {_one_line(', '.join(there))}" if there else "There is no other device"


def _reason(error: BaseException) -> str:
    """An error in one line: poot's own explain themselves, others need their type."""
    return _one_line(str(error) if isinstance(error, PootError) else f"{type(error).__name__}: {error}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
