"""Settings that a config can give, checked."""

from __future__ import annotations

from ..errors import ConfigError, Errors


def is_number(value: object) -> bool:
    """RETURNS (bool): Whether it is a whole or a floating point number; NaN is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def require(owner: str, name: str, value: object, condition: bool, expected: str) -> None:
    """Refuse a setting unless the condition holds.

    owner (str): What has the setting, such as "the scalar mix".
    name, value, expected: The setting, its value and what it must be.
    condition (bool): Whether it is that.
    RAISES (ConfigError): E300.
    """
    if not condition:
        raise ConfigError(Errors.E300.format(name=name, owner=owner, value=value, expected=expected))
