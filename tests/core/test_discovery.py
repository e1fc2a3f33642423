"""Plugins that fail in every way a stranger's code can, loaded by the real discovery: recorded, and never in another's way."""

from collections.abc import Callable

import pytest

from kvcache_core.errors import DuplicateNameError, PluginError
from kvcache_core.registry.discovery import discover
from kvcache_core.registry.known import Kind
from kvcache_core.registry.loading import load_target
from kvcache_core.registry.records import PluginRecord, PluginSource, Stage
from kvcache_core.registry.registry import Registry, State

Found = Callable[..., PluginRecord]
MakePlugin = Callable[..., PluginSource]

GOOD = """
@hookimpl
def kvcache_cache_types():
    return [CacheTypeDescriptor(name="good_cache", summary="works", factory="good.cache:make")]
"""


@pytest.mark.parametrize(
    ("body", "stage", "error"),
    [
        ("import no_such_module_at_all", Stage.IMPORT, "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("raise SystemExit(3)", Stage.IMPORT, "SystemExit: 3"),
        ("1 / 0", Stage.IMPORT, "ZeroDivisionError: division by zero"),
        ("", Stage.HOOKS, "offers nothing"),
        ("@hookimpl\ndef kvcache_cache_types():\n    raise KeyError('oops')", Stage.HOOKS, "KeyError: 'oops'"),
        ("@hookimpl\ndef kvcache_cache_types(registry):\n    return []", Stage.HOOKS, "registry"),
        (
            "@hookimpl\ndef kvcache_cache_typs():\n    return []",
            Stage.HOOKS,
            "kvcache_cache_typs (did you mean kvcache_cache_types?)",
        ),
        ("def kvcache_cache_types():\n    return []", Stage.HOOKS, "kvcache_cache_types is not marked with @hookimpl"),
        ("@hookimpl(wrapper=True)\ndef kvcache_cache_types():\n    return (yield)", Stage.HOOKS, "may not be a hook wrapper"),
        ("@hookimpl\ndef kvcache_cache_types():\n    return 7", Stage.HOOKS, "TypeError: 'int' object is not iterable"),
        (
            "@hookimpl\ndef kvcache_cache_types():\n    return 'radix'",
            Stage.HOOKS,
            "must give a list of descriptors, not 'radix'",
        ),
        (
            "@hookimpl\ndef kvcache_cache_types():\n    return ['radix']",
            Stage.DESCRIPTORS,
            "gave 'radix', not a CacheTypeDescriptor",
        ),
    ],
)
def test_broken_plugin_is_recorded_with_its_stage(found: Found, body: str, stage: Stage, error: str):
    """FAULTS C2, C3."""
    record = found(body)
    assert record.stage is stage
    assert record.error is not None and error in record.error
    assert record.offers == ()
    assert not record.ok


def test_generator_that_raises_halfway_registers_nothing_but_claims_its_names(found: Found):
    record = found("""
        @hookimpl
        def kvcache_cache_types():
            yield CacheTypeDescriptor(name="first", summary="a", factory="a.b:c")
            raise RuntimeError("halfway")
    """)
    assert (record.stage, record.offers) == (Stage.HOOKS, ())
    registry = Registry([record])
    assert registry.names(Kind.CACHE_TYPE) == ()
    assert registry.state(Kind.CACHE_TYPE, "first") is State.BROKEN
    with pytest.raises(PluginError, match=r"^cache type 'first': acme-mine 1\.0 .*stage 'hooks': RuntimeError: halfway"):
        registry.cache_type("first")


def test_a_later_hook_that_raises_takes_back_the_earlier_ones(found: Found):
    record = found(GOOD + "@hookimpl\ndef kvcache_observers():\n    raise OSError('late')\n")
    assert (record.stage, record.offers) == (Stage.HOOKS, ())


@pytest.mark.parametrize(
    ("descriptor", "fault"),
    [
        ('CacheTypeDescriptor(name="Bad Name", summary="a", factory="a.b:c")', "name 'Bad Name' must match"),
        ('CacheTypeDescriptor(name="x", summary="", factory="a.b:c")', "needs a summary of one line"),
        ('CacheTypeDescriptor(name="x", summary="a", factory="a.b.c")', "must be a string 'module:attribute'"),
        ('CacheTypeDescriptor(name="x", summary="a", factory=len)', "must be a string 'module:attribute'"),
        ('CacheTypeDescriptor(name=None, summary="a", factory="a.b:c")', "is malformed (TypeError"),
    ],
)
def test_malformed_cache_type_is_refused(found: Found, descriptor: str, fault: str):
    record = found(f"@hookimpl\ndef kvcache_cache_types():\n    return [{descriptor}]")
    assert record.stage is Stage.DESCRIPTORS
    assert record.error is not None and fault in record.error


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("options=dict", "must be a subclass of PluginOptions"),
        ("options=WithKind", "may not have a field 'kind'"),
        ("options=Options, flags=(('nope', '--hicache-storage-nope'),)", "the option 'nope', which does not exist"),
        ("options=Options, flags=(('path', '--path'),)", "must match"),
        ("options=Options, flags=(('path', '--hicache-ratio'),)", "is taken by a field of hicache"),
        ("options=Options, capabilities=frozenset({'persistant'})", "'persistant', which is none of capacity, persistent, scan"),
    ],
)
def test_malformed_storage_backend_is_refused(found: Found, arguments: str, fault: str):
    record = found(f"""
        class Options(PluginOptions):
            path: str
        class WithKind(PluginOptions):
            kind: str
        @hookimpl
        def kvcache_storage_backends():
            return [StorageBackendDescriptor(name="x", summary="a", factory="a.b:c", {arguments})]
    """)
    assert record.stage is Stage.DESCRIPTORS
    assert record.error is not None and fault in record.error


def test_a_component_with_options_is_refused(found: Found):
    """Nothing could give them: the factory would get None, and go on with whatever it takes that for."""
    record = found("""
        class Options(PluginOptions):
            chunk: int = 8192
        @hookimpl
        def kvcache_tree_components():
            return [TreeComponentDescriptor(name="x", summary="a", factory="a.b:c", options=Options)]
    """)
    assert record.stage is Stage.DESCRIPTORS
    assert record.error is not None and "has options, and no configuration could give them" in record.error


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ('name="config"', "is built in"),
        ('name="x", section="hicache", section_model="a.b:C"', "is taken"),
        ('name="x", section="mine"', "section_model of command 'x' must be"),
        ('name="x", section_model="a.b:C"', "has a section_model but no section"),
    ],
)
def test_malformed_command_is_refused(found: Found, arguments: str, fault: str):
    record = found(f"""
        @hookimpl
        def kvcache_commands():
            return [CommandDescriptor(summary="a", configure="a.b:c", run="a.b:c", {arguments})]
    """)
    assert record.stage is Stage.DESCRIPTORS
    assert record.error is not None and fault in record.error


def test_a_name_offered_twice_by_one_plugin_is_refused(found: Found):
    record = found(GOOD.replace("]", "] * 2"))
    assert record.stage is Stage.DESCRIPTORS
    assert record.error == "cache type 'good_cache' is offered twice"


def test_plugin_of_another_api_version_is_named_without_being_imported(plugin: MakePlugin):
    """FAULTS C3."""
    source = plugin("future", "raise AssertionError('imported')", group="kvcache.v2")
    registry = Registry(discover([source]))
    (record,) = registry.records
    assert record.stage is Stage.API_VERSION
    assert record.error is not None and "plugin API v2" in record.error and "this kvcache-core has v1" in record.error
    # Asked for by its entry point's name, it is broken, not absent: nothing may quietly take its place.
    with pytest.raises(PluginError, match="plugin API v2"):
        registry.cache_type("future")


def test_broken_plugins_leave_the_good_one_alone(plugin: MakePlugin):
    """FAULTS C2."""
    bad = ["1 / 0", "", "@hookimpl\ndef kvcache_nothing():\n    return []", "raise SystemExit"]
    sources = [plugin(f"bad{i}", body) for i, body in enumerate(bad)]
    registry = Registry(discover([*sources[:2], plugin("good", GOOD), *sources[2:]]))
    assert registry.names(Kind.CACHE_TYPE) == ("good_cache",)
    assert registry.cache_type("good_cache").source.distribution == "acme-good"
    assert sum(not record.ok for record in registry.records) == len(bad)


def test_a_stranger_that_broke_before_it_spoke_is_mentioned_when_a_name_is_missing(plugin: MakePlugin):
    registry = Registry(discover([plugin("mystery", "1 / 0"), plugin("good", GOOD)]))
    with pytest.raises(PluginError, match=r"installed: good_cache; perhaps meant: acme-mystery 1\.0 .*ZeroDivisionError"):
        registry.cache_type("wonderful")


def test_order_does_not_depend_on_the_order_of_the_environment(plugin: MakePlugin):
    sources = [plugin(name, GOOD.replace("good", name)) for name in ("one", "two", "three")]
    assert discover(sources) == discover(reversed(sources))


def test_duplicates_across_real_modules(plugin: MakePlugin):
    """FAULTS C3."""
    registry = Registry(discover([plugin("one", GOOD), plugin("two", GOOD)]))
    with pytest.raises(DuplicateNameError, match=r"acme-one 1\.0 .* and acme-two 1\.0"):
        registry.cache_type("good_cache")


def test_commands_of_one_package_may_share_a_section_but_not_two_packages(plugin: MakePlugin):
    body = """
        @hookimpl
        def kvcache_commands():
            make = lambda name: CommandDescriptor(
                name=name, summary="a", configure="a.b:c", run="a.b:d", section="shared", section_model="a.b:Model")
            return [make("NAME1"), make("NAME2")]
    """
    one = plugin("one", body.replace("NAME1", "alpha").replace("NAME2", "beta"))
    two = plugin("two", body.replace("NAME1", "gamma").replace("NAME2", "delta"))
    assert Registry(discover([one])).section("shared").source.distribution == "acme-one"
    both = Registry(discover([one, two]))
    assert both.names(Kind.COMMAND) == ("alpha", "beta", "delta", "gamma")
    with pytest.raises(DuplicateNameError, match="configuration section 'shared'"):
        both.section("shared")


# -- foreign code that takes liberties (FAULTS C2) -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "stage"),
    [
        ("raise SystemExit(0)", Stage.IMPORT),
        ("raise GeneratorExit('gone')", Stage.IMPORT),
        ("class Odd(BaseException): pass\nraise Odd('odd')", Stage.IMPORT),
        ("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", Stage.IMPORT),
        ("@hookimpl\ndef kvcache_cache_types():\n    raise SystemExit(0)", Stage.HOOKS),
        ("class Odd(BaseException): pass\n@hookimpl\ndef kvcache_cache_types():\n    raise Odd('odd')", Stage.HOOKS),
    ],
)
def test_nothing_that_a_plugin_raises_ends_the_command(found: Found, body: str, stage: Stage):
    assert found(body).stage is stage


def test_ctrl_c_while_a_plugin_is_imported_is_ctrl_c(found: Found):
    with pytest.raises(KeyboardInterrupt):
        found("raise KeyboardInterrupt")


def test_what_a_plugin_prints_is_not_the_answer_of_the_command(found: Found, capsys: pytest.CaptureFixture[str]):
    record = found("print('imported')\n" + GOOD.replace("    return", "    print('asked')\n    return"))
    assert record.ok
    load_target(f"{record.source.target}:kvcache_cache_types", record.source)
    print("answer")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("answer\n", "imported\nasked\n")
