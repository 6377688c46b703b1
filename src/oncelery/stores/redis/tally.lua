-- tally: the ledger as a whole
-- in: now
-- out: how many jobs are queued, running, completed, buried, cancelled; of how many the lease has lapsed; for how long
--      the first check has been due; the counters by JSON [task, decision], flat

--include shared.lua
local states = { [QUEUED] = 0, [RUNNING] = 0, [COMPLETED] = 0, [BURIED] = 0, [CANCELLED] = 0 }
local lapsed = 0

for _, task in ipairs(call('SMEMBERS', ns .. 'tasks')) do
  for _, state in ipairs({ QUEUED, RUNNING, BURIED }) do
    states[state] = states[state] + call('ZCARD', ns .. state .. ':' .. task)
  end
  -- There are as many as workers have processes and threads, so no index of leases is kept.
  for _, id in ipairs(call('ZRANGE', ns .. 'running:' .. task, 0, -1)) do
    if tonumber(call('HGET', ns .. 'job:' .. id, 'lease_until') or now) <= now then
      lapsed = lapsed + 1
    end
  end
end

local kinds = call('HGETALL', ns .. 'kinds')
for i = 1, #kinds, 2 do
  if tonumber(kinds[i]) then
    local state = cjson.decode(kinds[i + 1])[1]
    states[state] = states[state] + call('XLEN', ns .. 'finished:' .. kinds[i])
  end
end

local first = call('ZRANGE', ns .. 'due', 0, 0, 'WITHSCORES')
local overdue = math.max(0, now - (first[2] or now))
return { states[QUEUED], states[RUNNING], states[COMPLETED], states[BURIED], states[CANCELLED], lapsed, overdue,
  call('HGETALL', ns .. 'decisions') }
