-- due: (running with a lapsed lease | queued, its message missing) -> the same, with a later check;
--      one that can never be published, or a lapsed run whose cancellation is asked for -> cancelled
-- in: now, 2 limit, 3 the formats that the sweeper reads, each between newlines (empty: all), then the queues that are empty
-- out: the jobs to publish, those that should have been checked longest ago first; then those that have ended

--include parts/shared.lua
--include parts/reading.lua
--include parts/ending.lua
--include parts/changes.lua
local limit, formats, taken, ended = tonumber(ARGV[2]), ARGV[3], {}, {}
local kinds = call('ZRANGE', ns .. 'kinds', 0, -1, 'WITHSCORES')

-- The signs: the queue is empty, or one that was sent to it later has begun.
local sent_before = {}
for i = 1, #kinds, 2 do
  local queue = cjson.decode(kinds[i])[2]
  -- A watermark later than now was written by a clock that was ahead: it counts as none.
  local watermark = tonumber(kinds[i + 1]) <= now and kinds[i + 1] - 1 or 0
  sent_before[queue] = math.max(sent_before[queue] or 0, watermark)
end
for i = 4, #ARGV do
  sent_before[ARGV[i]] = now
end

local function merely_old(job)
  local sent_at = tonumber(job.sent_at)
  return job.state == QUEUED and not job.resent and sent_at > sent_before[job.queue] and sent_at <= now - SLOW_CHECK
end

local function is_readable(job)
  if formats == '' then
    return true
  end
  local format = (body_of(job) or ''):match('^%z([^\n]*)\n') or ''
  return formats:find('\n' .. format .. '\n', 1, true) ~= nil
end

-- Whether anything was done about the job.
local function take(id, index)
  local job = unfinished(id)
  if not job then
    -- Evicted, against our rules: the others must not wait for it.
    call('ZREM', index, id)
  elseif body_of(job) == '' or (lapsed(job) and job.cancel_requested) then
    end_lapsed(job)
    ended[#ended + 1] = told(job)
  elseif not is_readable(job) then
    -- For another sweeper. Behind the others, of which this one might else see none.
    if index == ns .. 'due' or index == ns .. 'again' then
      call('ZADD', index, digits(now), id)
    end
    return false
  elseif merely_old(job) then
    -- As a backlog is: soon again would be a copy too many, and signs go on to tell.
    move(job, { held = '1' }, now + SLOW_CHECK)
    taken[#taken + 1] = told(job)
  else
    local resent = (job.resent or 0) + 1
    local check = now + math.min(PUBLISH_GRACE * 2 ^ resent, SLOW_CHECK)
    move(job, { resent = resent, held = job.state == QUEUED and '1' or nil }, check)
    taken[#taken + 1] = told(job)
  end
  return true
end

-- Those of an index up to a time, with the time at which they were to be checked or sent.
local function look(found, index, oldest, newest, later)
  local rows = call('ZRANGEBYSCORE', index, digits(oldest), digits(newest), 'WITHSCORES', 'LIMIT', 0, limit - #taken)
  for i = 1, #rows, 2 do
    found[#found + 1] = { id = rows[i], index = index, at = rows[i + 1] + later }
  end
end

local function take_all(found)
  table.sort(found, function(a, b)
    return a.at < b.at
  end)
  local done = 0
  for _, job in ipairs(found) do
    if #taken < limit and take(job.id, job.index) then
      done = done + 1
    end
  end
  return done
end

-- What a clock that was ahead has written is set right first; these ranges are empty unless one was.
local function set_right_all(index, after, before)
  local ids = call('ZREVRANGEBYSCORE', index, before, '(' .. digits(after), 'LIMIT', 0, SET_RIGHT_AT_ONCE)
  for _, id in ipairs(ids) do
    local job = unfinished(id)
    if job then
      set_right(job)
    end
  end
end

for i = 1, #kinds, 2 do
  local live = ns .. 'live:' .. kinds[i]
  set_right_all(live, now, '(' .. digits(RUNS))
  set_right_all(ns .. 'held:' .. kinds[i], now, '+inf')
  -- Leases of one kind are equally long, as a rule: none is wrong unless the one that lapses last is.
  local last = call('ZREVRANGEBYSCORE', live, '+inf', digits(RUNS + now), 'WITHSCORES', 'LIMIT', 0, 1)
  local lease_for = last[1] and call('HGET', ns .. 'job:' .. last[1], 'lease_for')
  if lease_for and last[2] - RUNS > now + lease_for then
    set_right_all(live, RUNS + now + lease_for, '+inf')
  end
end
set_right_all(ns .. 'again', now + SLOW_CHECK, '+inf')

-- Those whose check has come; again, if some of them only ended.
repeat
  local found = {}
  look(found, ns .. 'due', 0, now, 0)
  look(found, ns .. 'again', 0, now, 0)
  for i = 1, #kinds, 2 do
    look(found, ns .. 'live:' .. kinds[i], RUNS, RUNS + now, -RUNS)
    look(found, ns .. 'live:' .. kinds[i], 0, now - SLOW_CHECK, SLOW_CHECK)
  end
until take_all(found) == 0 or #taken == limit or #ended > ENDED_AT_ONCE

-- Those that a sign tells of.
local missing = {}
for i = 1, #kinds, 2 do
  local newest = math.min(sent_before[cjson.decode(kinds[i])[2]], now - PUBLISH_GRACE)
  look(missing, ns .. 'live:' .. kinds[i], 0, newest, 0)
  look(missing, ns .. 'delayed:' .. kinds[i], 0, newest, 0)
end
take_all(missing)
for _, job in ipairs(ended) do
  taken[#taken + 1] = job
end
return taken
