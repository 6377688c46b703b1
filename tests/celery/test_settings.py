from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from oncelery import ConfigurationError, Oncelery
from oncelery.celery.recommended import RECOMMENDED
from oncelery.job import OnDuplicate

MakeApp = Callable[..., Celery]


@pytest.fixture
def make_app() -> MakeApp:
    """Give a Celery app that no other test sees."""

    def make(**settings: object) -> Celery:
        app = Celery("shop", set_as_current=False, broker="memory://")
        app.conf.update(settings)
        return app

    return make


# Where settings come from


def test_the_constructor_goes_before_the_apps_configuration_and_that_before_the_environment(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCELERY_STORE", "memory://environment")
    monkeypatch.setenv("ONCELERY_NAMESPACE", "environment")
    monkeypatch.setenv("ONCELERY_SWEEP_EVERY", "7")
    app = make_app(oncelery_store="memory://app", oncelery_namespace="app")

    settings = Oncelery(app, store="memory://constructor").settings

    assert settings.store == "memory://constructor"
    assert settings.namespace == "app"
    assert settings.sweep_every == 7


def test_an_app_configured_after_the_extension_was_made_is_heeded(make_app: MakeApp) -> None:
    app = make_app()
    once = Oncelery(app)

    app.conf.oncelery_store = "memory://late"

    assert once.settings.store == "memory://late"


def test_django_style_settings_are_read_behind_their_namespace() -> None:
    settings = SimpleNamespace(CELERY_ONCELERY_STORE="memory://django", CELERY_ONCELERY_LEASE=10, ONCELERY_LEASE=99)
    app = Celery("shop", set_as_current=False)
    app.config_from_object(settings, namespace="CELERY")

    once = Oncelery(app)

    assert once.settings.store == "memory://django"
    assert once.policy().lease == timedelta(seconds=10)


def test_what_the_user_configured_is_not_hidden_by_defaults_of_ours() -> None:
    app = Celery("shop", set_as_current=False)
    Oncelery(app)
    app.config_from_object(SimpleNamespace(CELERY_ONCELERY_STORE="memory://mine"), namespace="CELERY")

    assert app.conf.get("oncelery_store") == "memory://mine"
    assert app.conf.get("oncelery_lease") is None


def test_options_of_all_tasks_have_defaults_and_a_task_its_own(make_app: MakeApp) -> None:
    once = Oncelery(make_app(oncelery_max_attempts=9), store="memory://", lease=5, on_duplicate="reject")

    assert once.policy().max_attempts == 9
    assert once.policy().lease == timedelta(seconds=5)
    assert once.policy(on_duplicate="join", lease=timedelta(minutes=1)).on_duplicate is OnDuplicate.JOIN


@pytest.mark.parametrize(
    ("variable", "text", "read"),
    [
        ("ONCELERY_LEASE", "2.5", lambda once: once.policy().lease == timedelta(seconds=2.5)),
        ("ONCELERY_RETENTION", "0", lambda once: once.policy().retention == timedelta(0)),
        ("ONCELERY_MAX_CRASHES", "7", lambda once: once.policy().max_crashes == 7),
        ("ONCELERY_MAX_RECEIVED", "5", lambda once: once.settings.max_received == 5),
        ("ONCELERY_ON_DUPLICATE", "trail", lambda once: once.policy().on_duplicate is OnDuplicate.TRAIL),
        ("ONCELERY_NAMESPACE", "2030", lambda once: once.namespace == "2030"),
        ("ONCELERY_DEAD_LETTER_QUEUE", "0", lambda once: once.settings.dead_letter_queue == "0"),
        ("ONCELERY_ON_BROKER_DOWN", "refuse", lambda once: once.settings.on_broker_down == "refuse"),
    ],
)
def test_the_environment_says_numbers_where_numbers_are_meant_and_text_where_text_is(
    make_app: MakeApp,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    text: str,
    read: Callable[[Oncelery], bool],
) -> None:
    monkeypatch.setenv(variable, text)

    assert read(Oncelery(make_app(), store="memory://"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"leese": 3}, "leese"),
        ({"on_broker_down": "cry"}, "on_broker_down"),
        ({"sweep_every": -1}, "sweep_every"),
        ({"sweep_every": "often"}, "sweep_every"),
        ({"max_received": "many"}, "max_received"),
        ({"max_received": 2.5}, "max_received must be a whole number"),
        ({"store": 5}, "store"),
    ],
)
def test_a_wrong_setting_is_named(make_app: MakeApp, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        _ = Oncelery(make_app(), **({"store": "memory://"} | settings)).settings


def test_a_setting_that_does_not_exist_is_refused_where_it_is_given(make_app: MakeApp) -> None:
    app = make_app()

    with pytest.raises(ConfigurationError, match=r"^no such setting: stroe \(did you mean store\?\)$"):
        Oncelery(app, stroe="memory://")

    assert not hasattr(app, "oncelery")


@pytest.mark.parametrize(
    ("name", "namespace", "told"),
    [
        ("oncelery_retenton", None, "oncelery_retenton (did you mean oncelery_retention?)"),
        ("CELERY_ONCELERY_RETENTON", "CELERY", "CELERY_ONCELERY_RETENTON (did you mean CELERY_ONCELERY_RETENTION?)"),
        ("oncelery_xyz", None, "oncelery_xyz"),
        ("oncelery_xyz", "CELERY", "oncelery_xyz"),
    ],
)
def test_a_setting_that_does_not_exist_is_refused_in_the_apps_configuration(
    name: str, namespace: str | None, told: str
) -> None:
    app = Celery("shop", set_as_current=False)
    app.config_from_object({name: 3600}, namespace=namespace)

    with pytest.raises(ConfigurationError, match=f"^no such setting: {re.escape(told)}$"):
        _ = Oncelery(app, store="memory://").settings


def test_what_is_not_behind_the_apps_namespace_is_not_ours_to_refuse() -> None:
    app = Celery("shop", set_as_current=False)
    app.config_from_object(SimpleNamespace(ONCELERY_TEAM="payments", CELERY_ONCELERY_LEASE=3), namespace="CELERY")

    assert Oncelery(app).settings.policy == {"lease": 3}


def test_a_wrong_number_in_the_environment_is_named(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCELERY_LEASE", "soon")

    with pytest.raises(ConfigurationError, match="lease"):
        Oncelery(make_app(), store="memory://").policy()


def test_an_app_without_a_store_is_told_so_when_the_ledger_is_needed_and_not_before(make_app: MakeApp) -> None:
    once = Oncelery(make_app())
    assert once.policy().max_attempts == 4

    with pytest.raises(ConfigurationError, match="ONCELERY_STORE"):
        _ = once.ledger


# Celery's own settings, as we would have them


def test_recommended_settings_are_applied_where_the_user_said_nothing(make_app: MakeApp) -> None:
    app = make_app(broker_url="redis://localhost:1/0")
    Oncelery(app, store="memory://", recommended=True)

    assert {name: app.conf[name] for name in RECOMMENDED} == RECOMMENDED
    assert app.conf.broker_transport_options["visibility_timeout"] > 3600


def test_recommended_settings_give_way_to_what_the_user_said() -> None:
    mine = SimpleNamespace(
        CELERY_BROKER_URL="redis://localhost:1/0",
        CELERY_WORKER_PREFETCH_MULTIPLIER=4,
        CELERY_ACCEPT_CONTENT=["json", "pickle"],
        CELERY_BROKER_TRANSPORT_OPTIONS={"visibility_timeout": 60, "global_keyprefix": "mine"},
    )
    app = Celery("shop", set_as_current=False)
    Oncelery(app, store="memory://", recommended=True)

    app.config_from_object(mine, namespace="CELERY")

    assert app.conf.worker_prefetch_multiplier == 4
    assert app.conf.accept_content == ["json", "pickle"]
    options = app.conf.broker_transport_options
    assert (options["visibility_timeout"], options["global_keyprefix"]) == (60, "mine")
    assert app.conf.broker_connection_max_retries is None


def test_a_visibility_timeout_is_recommended_beside_the_users_other_transport_options_and_only_where_it_has_a_meaning(
    make_app: MakeApp,
) -> None:
    redis = make_app(broker_url="redis://localhost:1/0", broker_transport_options={"global_keyprefix": "mine"})
    rabbit = make_app(broker_url="amqp://localhost:1//")

    for app in (redis, rabbit):
        Oncelery(app, store="memory://", recommended=True)

    assert redis.conf.broker_transport_options["global_keyprefix"] == "mine"
    assert redis.conf.broker_transport_options["visibility_timeout"] > 3600
    assert "visibility_timeout" not in rabbit.conf.broker_transport_options


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("redis://localhost:1/0", {"socket_timeout", "socket_connect_timeout", "socket_keepalive", "retry_on_timeout"}),
        (["sentinel://localhost:1", "sentinel://localhost:2"], {"socket_timeout"}),
        ("amqp://localhost:1//", {"read_timeout", "write_timeout"}),
        ("memory://", set()),
    ],
)
def test_a_silent_broker_is_not_listened_to_for_ever_where_settings_are_recommended(
    make_app: MakeApp, url: str | list[str], names: set[str]
) -> None:
    app = make_app(broker_url=url)
    Oncelery(app, store="memory://", recommended=True)

    assert names <= app.conf.broker_transport_options.keys()


def test_nothing_of_celerys_is_changed_unless_asked_for(make_app: MakeApp) -> None:
    app, untouched = make_app(), make_app()

    Oncelery(app, store="memory://")

    assert {name: app.conf[name] for name in RECOMMENDED} == {name: untouched.conf[name] for name in RECOMMENDED}
