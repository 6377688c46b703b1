-- What every script starts with: the time, the keys, and how a job is read. Then changes.lua, for those that change one.
--
-- Every key starts with KEYS[1], "{<namespace>}:", so a namespace is in one slot of a cluster. Times are microseconds.
--
--   job:<id>          hash    a queued, running or buried job; a field that is missing is none. Never a TTL.
--   finished:<n>      stream  the completed or cancelled jobs of kind n, by the time they were settled
--   kinds             hash    n -> kind, kind -> n, "last" -> n; a kind is JSON [state, task, queue, retention, history]
--   ids:<000..fff>    hash    id -> place of a finished job: n, then the 16 digits of its time in the stream
--   keys:<000..fff>   hash    key -> the key's last job: its place if it is finished, else "@" and its id
--   due               zset    every live job that waits behind no other, by its next check
--   waiting:<queue>   zset    the queued ones that were not published again yet, by when they were sent
--   watermark         hash    queue -> the newest sent_at of a job that has begun
--   tasks             set     every task that has had a job
--   queued:<task>     zset    by the last change; the same for running:<task> and buried:<task>
--   scope:<scope>     zset    jobs of all states, by the last change; only those that have a scope
--   repeats           hash    place of a finished job -> how many duplicates it answered, where any
--   duplicates        stream  the newest duplicates
--   hours             zset    the hours that have counts
--   hour:<hour>       hash    JSON [task, scope, answer] -> duplicates in that hour
--   decisions         hash    JSON [task, decision] -> count
--   barrier           string  written before a WAIT, so that there is always something to wait for
--
-- Scripts check first and write last, and add before they delete: a server short of memory then refuses them whole.

local QUEUED, RUNNING, COMPLETED, BURIED, CANCELLED = 'queued', 'running', 'completed', 'buried', 'cancelled'

local call, ns, now = redis.call, KEYS[1], tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Lua writes numbers with 14 digits; a time has 16.
local function digits(number)
  return string.format('%.0f', number)
end

-- Hexadecimal text and UUIDs are kept in half their size: x or u, and the bytes; any other text: t, and the text.

local function word_to_bytes(word)
  return struct.pack('>I4', tonumber(word, 16))
end

local function bytes_to_word(bytes)
  return string.format('%08x', (struct.unpack('>I4', bytes)))
end

local function pack(text)
  local tag, hex = 'x', text
  if #text == 36 then
    local a, b, c, d, e = text:match('^(%x+)%-(%x+)%-(%x+)%-(%x+)%-(%x+)$')
    if a and #a == 8 and #b == 4 and #c == 4 and #d == 4 then
      tag, hex = 'u', a .. b .. c .. d .. e
    end
  end
  if hex == '' or #hex % 8 ~= 0 or hex:find('[^0-9a-f]') then
    return 't' .. text
  end
  return tag .. hex:gsub('%x%x%x%x%x%x%x%x', word_to_bytes)
end

local function unpacked(packed)
  local tag, rest = packed:sub(1, 1), packed:sub(2)
  if tag == 't' then
    return rest
  end
  local hex = rest:gsub('....', bytes_to_word)
  if tag == 'u' then
    hex = hex:gsub('^(%x%x%x%x%x%x%x%x)(%x%x%x%x)(%x%x%x%x)(%x%x%x%x)', '%1-%2-%3-%4-')
  end
  return hex
end

-- Small hashes take a tenth of the memory of large ones, so the indexes are cut in 4096 each.
local function bucket(index, packed)
  return ns .. index .. ':' .. redis.sha1hex(packed):sub(1, 3)
end

-- Reading: a job is a table of its fields; a missing one is nil.

local function unfinished(id)
  local flat = call('HGETALL', ns .. 'job:' .. id)
  if #flat == 0 then
    return nil
  end
  local job = { id = id }
  for i = 1, #flat, 2 do
    job[flat[i]] = flat[i + 1]
  end
  return job
end

local function present(value)
  return value ~= '' and value or nil
end

-- The fields of an entry always stand in this order: the server then keeps their names once for many entries.
local function unpack_entry(n, kind, entry)
  local stamp, fields = entry[1]:match('^%d+'), entry[2]
  local job = {
    place = n .. string.format('%016.0f', stamp),
    state = kind[1],
    task = kind[2],
    queue = kind[3],
    retention = kind[4],
    history = kind[5],
    settled_at = stamp,
    id = unpacked(fields[2]),
    key = unpacked(fields[4]),
    created_at = stamp - fields[6],
    fence = fields[10],
    holder = present(unpacked(fields[12])),
    worker = present(fields[14]),
  }
  if fields[8] ~= '' then
    job.begun_at = stamp - fields[8]
    job.fence = job.begun_at + fields[10]
    job.attempt = '1'
  end
  if job.state == COMPLETED then
    job.result = fields[16]
  end
  if fields[18] ~= '' then
    for field, value in pairs(cmsgpack.unpack(fields[18])) do
      job[field] = value
    end
  end
  job.changed_at = job.settled_at
  job.duplicates = call('HGET', ns .. 'repeats', job.place) or nil
  return job
end

local function finished(place)
  local n, stamp = place:sub(1, -17), place:sub(-16)
  local entry = call('XRANGE', ns .. 'finished:' .. n, stamp, stamp)[1]
  return entry and unpack_entry(n, cjson.decode(call('HGET', ns .. 'kinds', n)), entry)
end

local function known(id)
  local job = unfinished(id)
  if not job then
    local packed = pack(id)
    local place = call('HGET', bucket('ids', packed), packed)
    job = place and finished(place)
  end
  return job or nil
end

local function last_of(key)
  local packed = pack(key)
  local place = call('HGET', bucket('keys', packed), packed)
  if not place then
    return nil
  end
  if place:sub(1, 1) == '@' then
    return unfinished(place:sub(2))
  end
  return finished(place)
end

-- What a reply tells of a job: its fields and values, flat.
local function told(job)
  local flat = {}
  for field, value in pairs(job) do
    flat[#flat + 1] = field
    flat[#flat + 1] = value
  end
  return flat
end

-- Questions

local function live(job)
  return job.state == QUEUED or job.state == RUNNING
end

local function readable(job)
  if not job or live(job) or job.state == BURIED or job.settled_at + job.history > now then
    return job
  end
  return nil
end

local function keeps_key(job)
  return live(job) or (job.state == COMPLETED and job.settled_at + job.retention > now)
end

local function lapsed(job)
  return job.lease_until and tonumber(job.lease_until) <= now
end

-- Whether no run has begun, and nobody has superseded it, since this lease was granted.
local function last_run_was(job, fence, holder)
  return tonumber(job.fence) == tonumber(fence) and job.holder == holder
end
