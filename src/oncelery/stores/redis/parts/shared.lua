-- What every script starts with: the time, the names, and where things are.
--
-- Every key starts with KEYS[1], "{<namespace>}:", so that a namespace is in one slot of a cluster. Times are
-- microseconds. Ids, keys and holders come and go packed (see packing.py); to the scripts they are plain bytes.
--
--   job:<id>         hash    a queued, running or buried job; a field that is missing is none. Never a TTL.
--                            Most jobs are `plain` all their life: sent at once, run once, with none of what is seldom.
--                            A plain job lacks the fields that follow from others: see `unfinished` in reading.lua.
--   body:<id>        string  its body, unless that is none
--   keys:<000..fff>  hash    key -> id of the key's last job
--   aliases:<000..fff> hash  alias -> MessagePack [id of its job, the first half of its digest]
--   aliased:<000..fff> hash  id of a job -> MessagePack array of its aliases, ALIASES_KEPT at most; the job's end in
--                            `disconnect` takes both away, so there are no more aliases than the jobs that are kept
--                            can have
--   kinds            zset    every kind, JSON [task, queue, retention, history], by the newest sent_at of a job of it
--                            that has begun
--   live:<kind>      zset    queued jobs whose message was sent at once, by when it was; and running ones, by RUNS plus
--                            their next check: when the lease lapses, or later if they were published again
--   held:<kind>      zset    the other queued jobs, by their last change: delayed, published again, or behind another
--   delayed:<kind>   zset    those of them that signs may tell of, by when they are sent: delayed, or published again
--                            for their age alone
--   due              zset    those of them that wait behind no other, by their next check
--   again            zset    the rest of them, published again because of a sign, by their next check
--   buried:<kind>    zset    buried jobs, by their last change
--   scope:<scope>    zset    jobs of all states, by their last change; only those that have a scope
--   letters:<scope>  zset    its buried jobs, by their last change
--   active:<scope>   set     its queued and running jobs
--   paces            hash    scope -> up to when its time is taken by jobs that were accepted (see reserve.lua)
--   finished:<n>     stream  the completed or cancelled jobs of one kind, by the time they were settled
--   apart:<id>       string  what a list does not show of a finished job, where that is large
--   endings          hash    n -> state and kind, these -> n, "last" -> n
--   ids:<000..fff>   hash    id -> place of a finished job: n, the 16 digits of its time, and "-" and a number if
--                            another of its kind ended in the same microsecond before
--   repeats          hash    place of a finished job -> how many duplicates it answered, where any
--   duplicates       stream  the newest duplicates
--   hours            zset    the hours that have counts
--   hour:<hour>      hash    JSON [task, scope, answer] -> duplicates in that hour
--   hour:<hour>:<scope>      the same of one scope, so that a tenant's counts cost what its own do
--   decisions        hash    JSON [task, decision] -> count
--   barrier          string  written before a WAIT, so that there is always something to wait for
--
-- So every live job has a next check, in live (a queued one's is SLOW_CHECK after it was sent), due or again; or it is
-- behind another. Scripts check first and write last, and add before they delete: a server short of memory then refuses them
-- whole. A script is built anew for each call, so it includes what rare cases need only after the common one.

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

-- Small hashes take a tenth of the memory of large ones, so each index is cut in 4096.
local function bucket(index, packed)
  return ns .. index .. ':' .. redis.sha1hex(packed):sub(1, 3)
end

-- For what is not plain; these are in changes.lua, and bind in alias.lua.
local update, list, unlist, seldom, let_follow, forget, bind
