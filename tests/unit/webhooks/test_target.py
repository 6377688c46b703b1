from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

import pytest
from guarded.receiver import resolve_to

from oncelery import DeliveryError, WebhookTargetError
from oncelery.webhooks.sending import send
from oncelery.webhooks.target import is_public, target_of


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com/hook?tenant=1",
        "https://hooks.example.co.uk:8443/a/b",
        "https://1.1.1.1/",
        "https://[2606:4700:4700::1111]/hook",
        "https://xn--bcher-kva.example/",
        "HTTPS://EXAMPLE.com/",
    ],
)
def test_public_https_may_be_called(url: str) -> None:
    assert target_of(url).tls


@pytest.mark.parametrize(
    "url",
    [
        # not https
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "//example.com/",
        "example.com",
        "",
        # loopback, private, link-local and metadata addresses
        "https://127.0.0.1/",
        "https://127.1.2.3/",
        "https://0.0.0.0/",
        "https://10.0.0.1/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://100.64.0.1/",
        "https://100.100.100.200/",
        "https://168.63.129.16/",
        "https://192.0.0.192/",
        "https://198.18.0.1/",
        "https://224.0.0.1/",
        "https://240.0.0.1/",
        "https://255.255.255.255/",
        # the same in other forms
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.1/",
        "https://10.1/",
        "https://1.1.1.1.1/",
        "https://example.0x1/",
        "https://3232235777/",
        # IPv6
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[::ffff:1.1.1.1]/",
        "https://[::127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://[64:ff9b:1::1]/",
        "https://[2002:7f00:1::]/",
        "https://[2001:0:7f00:1::]/",
        "https://[fe80::1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fc00::1]/",
        "https://[fd00:ec2::254]/",
        "https://[fec0::1]/",
        "https://[ff02::1]/",
        "https://[2001:db8::1]/",
        "https://[127.0.0.1]/",
        # names that are none
        "https:///hook",
        "https://example..com/",
        "https://example.com./",
        "https://-example.com/",
        "https://exa mple.com/",
        "https://exämple.com/",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://①②⑦.0.0.1/",
        "https://127。0。0。1/",
        # userinfo, ports and what parsers read differently
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://example.com@127.0.0.1/",
        "https://127.0.0.1\\@example.com/",
        "https://example.com\\.evil.com/",
        "https://example.com:22/",
        "https://example.com:25/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:port/",
        "https://example.com/\r\nHost: evil",
        "https://example.com/\thook",
        "https://example.com/" + "a" * 2048,
    ],
)
def test_what_could_lead_inside_is_refused_by_its_url(url: str) -> None:
    with pytest.raises(WebhookTargetError):
        target_of(url)


@pytest.mark.parametrize(
    "inside", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1%eth0"]
)
def test_a_name_that_leads_inside_is_refused_even_among_public_addresses(
    monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    resolve_to(monkeypatch, "93.184.216.34", inside)

    with pytest.raises(WebhookTargetError, match="not public"):
        target_of("https://rebinding.example/").addresses()


def test_a_name_is_resolved_once_and_its_checked_address_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolve_to(monkeypatch, "93.184.216.34")
    connected: list[Any] = []

    def connect(address: object, _timeout: float) -> socket.socket:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)

    with pytest.raises(DeliveryError, match="ConnectionRefusedError"):
        send(target_of("https://rebinding.example/"), b"{}", {})
    assert asked == ["rebinding.example"]
    assert connected == [("93.184.216.34", 443)]


def test_private_addresses_may_be_allowed_and_only_they_over_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target_of("http://127.0.0.1:8000/hook", private=True).addresses() == [ip_address("127.0.0.1")]
    assert target_of("https://10.0.0.1:22/", private=True).port == 22

    resolve_to(monkeypatch, "93.184.216.34")
    with pytest.raises(WebhookTargetError, match="https:// only"):
        target_of("http://example.com/", private=True).addresses()


def test_a_name_that_cannot_be_found_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(socket, "getaddrinfo", fail)

    with pytest.raises(DeliveryError, match="cannot be found"):
        target_of("https://example.com/").addresses()


def test_groups_are_not_public() -> None:
    assert not any(is_public(ip_address(text)) for text in ("224.0.0.1", "ff0e::1", "239.1.1.1"))
