-- What every script starts with: the time, the names, and how a job that has not finished is read.
--
-- Every key starts with KEYS[1], "{<namespace>}:", so that a namespace is in one slot of a cluster. Times are
-- microseconds. Ids, keys and holders come and go packed (see packing.py); to the scripts they are plain bytes.
--
--   job:<id>          hash    a queued, running or buried job; a field that is missing is none. Never a TTL.
--   body:<id>         string  its body, unless that is none
--   finished:<n>      stream  the completed or cancelled jobs of kind n, by the time they were settled
--   kinds             hash    n -> kind, kind -> n, "last" -> n; a kind is JSON [state, task, queue, retention, history]
--   ids:<000..fff>    hash    id -> place of a finished job: n, the 16 digits of its time, and "-" and a number if another
--                             of its kind ended in the same microsecond before
--   keys:<000..fff>   hash    key -> the key's last job: its place if it is finished, else "@" and its id
--   due               zset    every live job that waits behind no other, by its next check
--   waiting:<queue>   zset    the queued ones of these that were not published again yet, by when they were sent
--   watermark         zset    queue, by the newest sent_at of a job that has begun
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
-- A script is built anew for each call, so it includes what a rare case needs only after the common one.

local QUEUED, RUNNING, COMPLETED, BURIED, CANCELLED = 'queued', 'running', 'completed', 'buried', 'cancelled'

local call, ns = redis.call, KEYS[1]

-- The time, as text and as a number.
local at = ARGV[1]
if at == '' then
  local time = call('TIME')
  at = time[1] .. ('000000'):sub(#time[2] + 1) .. time[2]
end
local now = tonumber(at)

-- Lua itself writes numbers with 14 digits; a time has 16.
local function digits(number)
  return ('%.0f'):format(number)
end

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

-- Where in the finished jobs one stands.
local function place_of(n, stamp, number)
  return n .. ('0'):rep(16 - #stamp) .. stamp .. (number ~= '0' and '-' .. number or '')
end

-- Small hashes take a tenth of the memory of large ones, so each index is cut in 4096.
local function bucket(index, packed)
  return ns .. index .. ':' .. redis.sha1hex(packed):sub(1, 3)
end
