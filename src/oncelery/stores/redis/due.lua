-- due: (running with a lapsed lease | queued, its message missing) -> the same, with a later check;
--      one that can never be published, or a lapsed run whose cancellation is asked for -> cancelled
-- in: now, 2 limit, then the queues that are empty
-- out: the jobs to publish, those that should have been checked longest ago first

--include shared.lua
--include reading.lua
--include ending.lua
--include changes.lua
local limit, taken, ended = tonumber(ARGV[2]), {}, 0

-- Each one is set a later check or ends, so that the next look finds others.
local function take(id)
  local job = unfinished(id)
  if not job then
    -- Evicted, against our rules: the others must not wait for it.
    call('ZREM', ns .. 'due', id)
    return
  end
  if body_of(job) == '' or (lapsed(job) and job.cancel_requested) then
    end_lapsed(job)
    ended = ended + 1
    return
  end
  local resent = (job.resent or 0) + 1
  update(job, { resent = resent })
  call('ZADD', ns .. 'due', digits(now + math.min(PUBLISH_GRACE * 2 ^ resent, SLOW_CHECK)), id)
  call('ZREM', ns .. 'waiting:' .. job.queue, id)
  taken[#taken + 1] = told(job)
end

-- Those whose check has come.
while #taken < limit and ended < ENDED_AT_ONCE do
  local ids = call('ZRANGEBYSCORE', ns .. 'due', '-inf', at, 'LIMIT', 0, limit - #taken)
  if #ids == 0 then
    break
  end
  for _, id in ipairs(ids) do
    take(id)
  end
end

-- Those that a sign tells of: the queue is empty, or one that was sent to it later has begun.
local sent_before = {}
local marks = call('ZRANGE', ns .. 'watermark', 0, -1, 'WITHSCORES')
for i = 1, #marks, 2 do
  sent_before[marks[i]] = tonumber(marks[i + 1]) - 1
end
for i = 3, #ARGV do
  sent_before[ARGV[i]] = now
end

local missing = {}
for queue, mark in pairs(sent_before) do
  local newest = digits(math.min(mark, now - PUBLISH_GRACE))
  local rows = call('ZRANGEBYSCORE', ns .. 'waiting:' .. queue, '-inf', newest, 'WITHSCORES', 'LIMIT', 0, limit - #taken)
  for i = 1, #rows, 2 do
    missing[#missing + 1] = { id = rows[i], sent_at = tonumber(rows[i + 1]) }
  end
end
table.sort(missing, function(a, b)
  return a.sent_at < b.sent_at
end)
for _, job in ipairs(missing) do
  if #taken < limit then
    take(job.id)
  end
end
return taken
