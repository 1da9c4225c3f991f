"""Discovery: what is installed, what opens, what is passed over and why."""

import json
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint

import pytest

from poot_executor.device import Found, Missing
from poot_executor.discover import auto_rank, automatic_choice, brief, commands, installed, open_device, survey
from poot_executor.errors import DeviceLost, DeviceNotFound, DuplicateDevice
from poot_executor.settings import DeviceSettings

SETTINGS = DeviceSettings()


class Opened:
    """What a driver opens; it remembers how."""

    def __init__(self, selector, settings):
        self.selector = selector
        self.settings = settings
        self.closed = 0

    def close(self):
        self.closed += 1


class OneDriver:
    """A driver with fixed findings."""

    def __init__(self, *entries, automatic=True, refuse=()):
        self.entries = entries
        self.automatic = automatic
        self.refuse = refuse
        self.opened = []

    def probe(self):
        return list(self.entries)

    def open(self, selector, settings):
        if selector in self.refuse:
            raise DeviceNotFound(f"no device {selector!r}\n  on this bus")
        self.opened.append(Opened(selector, settings))
        return self.opened[-1]


@pytest.fixture
def points(monkeypatch):
    """Entry points over drivers of a module that exists for the test alone."""

    def make(**drivers):
        module = type(sys)("poot_discover_drivers")
        for name, driver in drivers.items():
            setattr(module, name, driver)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return [EntryPoint(n, f"{module.__name__}:{n}", "poot.devices") for n in drivers]

    return make


def gpu(selector="0", name="card", **kwargs):
    return OneDriver(Found(selector, name), **kwargs)


def test_auto_takes_the_first_real_gpu_and_says_what_it_passed_over(points):
    found = points(
        wgpu=OneDriver(Found("0", "llvmpipe", software=True), Found("1", "Radeon")),
        vulkan=OneDriver(Missing("libvulkan.so.1 is not there:\n apt install libvulkan1")),
        ptx=OneDriver(),
        zeta=gpu(),
        reference=gpu("", automatic=False),
    )
    device, choice = open_device("auto", SETTINGS, found)
    assert (choice.name, choice.selector, choice.description) == ("wgpu", "1", "Radeon")
    assert device.selector == "1" and device.settings is SETTINGS
    assert str(choice) == (
        "device wgpu:1 (Radeon), the first GPU that opens; passed over ptx (found no device); "
        "vulkan (libvulkan.so.1 is not there: apt install libvulkan1)"
    )
    assert choice.skipped[0] == ("ptx", "found no device")


def test_what_could_not_be_better_is_not_even_probed(points):
    class Untouched(OneDriver):
        def probe(self):
            raise AssertionError("probed")

    found = points(wgpu=Untouched(), zeta=Untouched(), reference=Untouched(), vulkan=gpu("1"), vpu=Untouched())
    _, choice = open_device("auto", SETTINGS, found)
    assert str(choice) == "device vulkan:1 (card), the first GPU that opens"
    # One that does not open, or is software, lets the others have their turn.
    found = points(
        vulkan=OneDriver(Found("0", "llvmpipe", software=True), Found("1", "old"), refuse=("1",)), zeta=gpu()
    )
    _, choice = open_device("auto", SETTINGS, found)
    assert (
        str(choice)
        == "device zeta:0 (card), the first GPU that opens; passed over vulkan:1 (no device '1' on this bus)"
    )


@pytest.mark.parametrize(
    ("drivers", "chosen", "why"),
    [
        ("vpu:npu vpu:cpu vulkan:0", "vpu:npu", "no GPU opens"),
        ("vpu:cpu vpu:cpu-fast vulkan:0 wgpu:0", "vpu:cpu", "no GPU and no NPU opens"),
        ("wgpu:0 vulkan:0", "vulkan:0", "nothing faster than software opens"),
        ("vpu:gpu vpu:npu wgpu:0", "vpu:gpu", "the first GPU that opens"),
    ],
)
def test_the_line_says_why(points, drivers, chosen, why):
    kinds = {}
    for each in drivers.split():
        name, selector = each.split(":")
        software = selector == "0" or selector.startswith("cpu")
        kinds.setdefault(name, []).append(Found(selector, "it", software=software))
    _, choice = open_device("auto", SETTINGS, points(**{name: OneDriver(*found) for name, found in kinds.items()}))
    assert str(choice) == f"device {chosen} (it), {why}"
    assert choice.why == why


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("no driver", "no driver"),
        ("a b: c d", "a b: c d"),
        (f"the driver did not start (at {'x' * 80}): install it", "the driver did not start"),
        (f"the driver is old; install {'x' * 80}", "the driver is old"),
        (f"OSError: libfoo.so is not there, {'x' * 80}", "OSError: libfoo.so is not there"),
        (f"Foo (a, b: {'x' * 80}) is lost; go", f"Foo (a, b: {'x' * 60}…"),
        ("x" * 80, "x" * 71 + "…"),
        (f"two\n  lines {'x ' * 80}", "two lines " + "x " * 30 + "x…"),
    ],
)
def test_a_reason_is_shortened_to_its_first_clause(reason, short):
    assert brief(reason) == short and len(brief(reason)) <= 72


def test_what_auto_would_choose_is_known_without_choosing(points):
    found = points(
        ptx=gpu(refuse=("0",)), vulkan=OneDriver(Found("0", "llvmpipe", software=True)), toy=gpu(automatic=False)
    )
    assert automatic_choice(survey(SETTINGS, found, try_open=True)) == ("vulkan", "0")
    assert automatic_choice(survey(SETTINGS, points(toy=gpu(automatic=False)), try_open=True)) is None


def test_auto_goes_on_where_a_device_does_not_open(points):
    found = points(ptx=gpu(refuse=("0",)), wgpu=OneDriver(Found("3", "llvmpipe", software=True)))
    _, choice = open_device("auto", SETTINGS, found)
    assert choice.name == "wgpu"
    assert choice.skipped == (("ptx:0", "no device '0' on this bus"),)


def test_the_order_of_auto():
    order = [
        ("ptx", Found("0", "")), ("rocm", Found("0", "")), ("vulkan", Found("1", "")),
        ("wgpu", Found("1", "")), ("alpha", Found("", "")), ("vpu", Found("gpu", "")), ("zeta", Found("", "")),
        ("xdna", Found("", "")), ("vpu", Found("npu", "")), ("vpu", Found("cpu", "", software=True)),
        ("vulkan", Found("0", "", software=True)), ("wgpu", Found("0", "", software=True)),
        ("beta", Found("", "", software=True)),
    ]  # fmt: skip
    shuffled = order[::-1]
    assert sorted(shuffled, key=lambda entry: auto_rank(*entry)) == order


def test_auto_with_nothing_that_opens_lists_every_reason(points):
    found = points(ptx=OneDriver(Missing("no driver")), wgpu=gpu(refuse=("0",)), toy=gpu(automatic=False))
    with pytest.raises(DeviceNotFound) as caught:
        open_device("auto", SETTINGS, found)
    for part in ("ptx: no driver", "wgpu:0: no device '0' on this bus", "toy: only by name"):
        assert part in str(caught.value)
    assert "pip install" in str(caught.value)
    with pytest.raises(DeviceNotFound, match="no device distribution is installed"):
        open_device("auto", SETTINGS, [])


@pytest.mark.parametrize(("request_", "selector"), [("wgpu", ""), ("wgpu:1", "1"), ("wgpu:a:b", "a:b"), ("toy", "")])
def test_a_named_device_is_opened_with_its_selector(points, request_, selector):
    found = points(wgpu=OneDriver(Found("0", "A"), Found("1", "B")), toy=gpu(automatic=False))
    device, choice = open_device(request_, SETTINGS, found)
    assert device.selector == choice.selector == selector
    assert choice.name == request_.split(":")[0] and choice.skipped == ()


@pytest.mark.parametrize(
    ("request_", "line"),
    [("wgpu", "device wgpu (A)"), ("wgpu:1", "device wgpu:1 (B)"), ("wgpu:9", "device wgpu:9")],
)
def test_the_choice_is_one_line(points, request_, line):
    found = points(wgpu=OneDriver(Found("0", "A"), Found("1", "B")))
    assert str(open_device(request_, SETTINGS, found)[1]) == line


@pytest.mark.parametrize("request_", ["cuda", "", "auto:1", ":0", "WGPU"])
def test_an_unknown_name_lists_what_is_installed(points, request_):
    found = points(wgpu=gpu(), toy=gpu())
    with pytest.raises(DeviceNotFound, match="installed are toy, wgpu"):
        open_device(request_, SETTINGS, found)


def test_a_named_device_that_is_absent_is_never_replaced(points):
    wgpu = gpu("0", "Radeon")
    found = points(ptx=OneDriver(Missing("no driver"), refuse=("1",)), wgpu=wgpu)
    with pytest.raises(DeviceNotFound) as caught:
        open_device("ptx:1", SETTINGS, found)
    assert "device 'ptx:1' did not open: no device '1' on this bus" in str(caught.value)
    assert "There is wgpu:0 (Radeon)" in str(caught.value)
    assert wgpu.opened == []


def test_a_survey_reports_everything(points):
    class Failing(OneDriver):
        def probe(self):
            raise OSError("libfoo.so:\n cannot open")

    found = points(
        wgpu=OneDriver(Found("0", "A"), Missing("no second"), Found("2", "C"), refuse=("2",)),
        bad=Failing(),
        number=7,
        toy=gpu(automatic=False),
    )
    found.append(EntryPoint("gone", "poot_no_such_module:DRIVER", "poot.devices"))
    by_name = {status.name: status for status in survey(SETTINGS, found)}
    assert list(by_name) == ["bad", "gone", "number", "toy", "wgpu"]
    assert by_name["bad"].error == "OSError: libfoo.so: cannot open"
    assert by_name["gone"].error.startswith("ModuleNotFoundError: No module named 'poot_no_such")
    assert "is no driver: it has no probe and no open" in by_name["number"].error
    assert not by_name["toy"].automatic and by_name["wgpu"].automatic
    assert by_name["wgpu"].entries[1] == Missing("no second")
    assert [f.selector for f in by_name["wgpu"].found] == ["0", "2"]
    assert by_name["wgpu"].opened == () and by_name["wgpu"].refused == {}
    assert by_name["wgpu"].distribution == "an unknown distribution"


def test_a_survey_that_tries_opens_and_closes_each(points):
    driver = OneDriver(Found("0", "A"), Found("2", "C"), refuse=("2",))
    (status,) = survey(SETTINGS, points(wgpu=driver), try_open=True)
    assert status.opened == ("0",)
    assert status.refused == {"2": "no device '2' on this bus"}
    assert [d.closed for d in driver.opened] == [1]


def test_a_driver_may_be_a_class(points):
    class Driver(OneDriver):
        def __init__(self):
            super().__init__(Found("5", "five"))

    assert open_device("auto", SETTINGS, points(zeta=Driver))[1].selector == "5"


def test_what_open_raises_is_kept_as_the_cause(points):
    class Lost(OneDriver):
        def open(self, selector, settings):
            raise DeviceLost("it fell off")

    with pytest.raises(DeviceNotFound, match="it fell off") as caught:
        open_device("zeta", SETTINGS, points(zeta=Lost()))
    assert isinstance(caught.value.__cause__, DeviceLost)


@pytest.fixture
def distributions(tmp_path):
    """Makes distributions as an installer leaves them: a module and its dist-info folder."""

    def make(name, version, group, entries, module=None, source=""):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        if module:
            (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))

    def run(script):
        """Run a script with those distributions on its path; what it prints, as JSON."""
        head = f"import json, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        command = [sys.executable, "-W", "error", "-c", head + textwrap.dedent(script)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout)

    make.run = run
    return make


def test_a_broken_distribution_is_reported_and_hides_nothing(distributions):
    distributions(
        "zz-broken", "1.2", "poot.devices", {"zz-broken": "zz_broken:DRIVER"},
        "zz_broken", "import zz_no_such_library\n",
    )  # fmt: skip
    distributions(
        "zz-good", "3.4", "poot.devices", {"zz-good": "zz_good:Driver"}, "zz_good",
        """
        from poot_executor.device import Found
        class Driver:
            automatic = False
            def probe(self): return [Found("a", "an accelerator")]
            def open(self, selector, settings): return ("opened", selector)
        """,
    )  # fmt: skip
    got = distributions.run(
        """
        from poot_executor.discover import open_device, survey
        from poot_executor.errors import DeviceNotFound
        from poot_executor.settings import DeviceSettings
        statuses = {s.name: s for s in survey(DeviceSettings()) if s.name.startswith("zz")}
        try:
            open_device("zz-broken", DeviceSettings())
        except DeviceNotFound as error:
            refused = str(error)
        device, choice = open_device("zz-good:a", DeviceSettings())
        print(json.dumps({
            "broken": [statuses["zz-broken"].distribution, statuses["zz-broken"].version,
                       statuses["zz-broken"].error],
            "good": [statuses["zz-good"].distribution, statuses["zz-good"].found[0].description],
            "refused": refused, "device": device, "choice": str(choice),
        }))
        """
    )
    assert got["broken"] == [
        "zz-broken", "1.2", "ModuleNotFoundError: No module named 'zz_no_such_library'",
    ]  # fmt: skip
    assert got["good"] == ["zz-good", "an accelerator"]
    assert "No module named 'zz_no_such_library'" in got["refused"]
    assert "zz-good:a (an accelerator)" in got["refused"]
    assert (got["device"], got["choice"]) == (["opened", "a"], "device zz-good:a (an accelerator)")


@pytest.mark.parametrize("group", ["devices", "commands"])
def test_a_name_that_two_distributions_claim_is_refused_with_both(distributions, group):
    for name in ("zz-one", "zz-two"):
        distributions(name, "1.0", f"poot.{group}", {"zz-claimed": "zz_nowhere:x"})
    got = distributions.run(
        f"""
        from poot_executor.discover import commands, installed
        from poot_executor.errors import DuplicateDevice
        try:
            {"installed" if group == "devices" else "commands"}()
        except DuplicateDevice as error:
            print(json.dumps([error.name, sorted([error.first, error.second]), str(error)]))
        """
    )
    assert got[:2] == ["zz-claimed", ["zz-one", "zz-two"]]
    assert "uninstall one of them" in got[2]


def test_commands_are_found_without_being_imported(distributions):
    distributions("zz-serve", "1.0", "poot.commands", {"zz-serve": "zz_nowhere:main"})
    got = distributions.run(
        """
        from poot_executor.discover import commands, installed
        print(json.dumps([commands()["zz-serve"].value, "zz-serve" in installed()]))
        """
    )
    assert got == ["zz_nowhere:main", False]


def test_looking_up_needs_no_native_library_and_imports_no_device():
    script = """
        import json, sys
        from poot_executor.discover import commands, installed
        installed(), commands()
        print(json.dumps([m for m in sys.modules if m.startswith(("poot_", "wgpu", "cuda"))]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, text=True)
    assert {m.split(".")[0] for m in json.loads(done.stdout)} == {"poot_executor"}


def test_names_are_sorted_and_a_duplicate_is_named():
    one = EntryPoint("b", "m:x", "poot.devices")
    two = EntryPoint("a", "m:y", "poot.devices")
    assert list(installed([one, two])) == ["a", "b"]
    assert commands([one]) == {"b": one}
    with pytest.raises(DuplicateDevice, match="'b' is claimed by both an unknown distribution"):
        installed([one, two, EntryPoint("b", "m:z", "poot.devices")])
