"""The Redis store: Redis 6.2 or newer, or Valkey. One Lua script per verb."""

from oncelery.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
