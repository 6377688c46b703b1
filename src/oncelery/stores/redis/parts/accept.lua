-- How a submission becomes a job, or a duplicate of one. For reserve, begin and revive, which have it as
-- ARGV 2 id, 3 key, 4 alias ('' = none), 5 MessagePack [kind, caller, digest, follows, scope, delay, ...].

local id, key, alias, offer = ARGV[2], ARGV[3], ARGV[4], cmsgpack.unpack(ARGV[5])
local kind, caller, digest, follows, scope, delay = unpack(offer)
-- The digest is that of the name which the caller chose: the alias, or else the key.
local key_digest = alias == '' and digest or ''
local own, namesakes = ns .. 'job:' .. id, bucket('keys', key)

-- `last` is the last job of the key; `old` had the same id, but is past its history and only not pruned yet.
local function accept(last, old, body, behind)
  local fence = last and last.fence or '0'
  if body then
    call('SET', ns .. 'body:' .. id, body)
  end
  call('HSET', own, 'plain', '1', 'key', key, 'state', QUEUED, 'kind', kind, 'caller', caller,
    'created_at', at, 'fence', fence)
  if old then
    forget(old)
  end
  if key_digest ~= '' or follows ~= '' or scope ~= '' or delay > 0 or behind then
    local job = { id = id, state = QUEUED, kind = kind, changed_at = at }
    update(job, {
      changed_at = at,
      digest = key_digest ~= '' and key_digest,
      follows = follows ~= '' and follows,
      scope = scope ~= '' and scope,
      sent_at = now + delay,
      not_before = delay > 0 and now + delay,
      behind = behind,
      held = (delay > 0 or behind) and '1',
    })
    list(job, now + delay + SLOW_CHECK)
  else
    call('ZADD', ns .. 'live:' .. kind, at, id)
  end
  call('ZADD', ns .. 'kinds', 'NX', 0, kind)
  if not behind then
    call('HSET', namesakes, key, id)
  end
  if alias ~= '' then
    bind(id)
  end
end

local function payload_differs(job)
  return key_digest ~= '' and job.digest and key_digest ~= job.digest
end
