-- tally: the ledger as a whole
-- in: now
-- out: how many jobs are queued, running, completed, buried, cancelled; of how many the lease has lapsed; for how long
--      the first check has been due; the counters by JSON [task, decision], flat

--include parts/shared.lua
local states = { [QUEUED] = 0, [RUNNING] = 0, [COMPLETED] = 0, [BURIED] = 0, [CANCELLED] = 0 }
local first_check, lapsed = now, 0

local function check(index, oldest, newest, later)
  local first = call('ZRANGEBYSCORE', index, digits(oldest), digits(newest), 'WITHSCORES', 'LIMIT', 0, 1)
  if first[2] then
    first_check = math.min(first_check, first[2] + later)
  end
end

check(ns .. 'due', 0, now, 0)
check(ns .. 'again', 0, now, 0)
for _, kind in ipairs(call('ZRANGE', ns .. 'kinds', 0, -1)) do
  local live = ns .. 'live:' .. kind
  -- There are as many as workers have processes and threads, so that no index of leases is kept.
  local running = call('ZRANGEBYSCORE', live, digits(RUNS), '+inf')
  for _, id in ipairs(running) do
    if tonumber(call('HGET', ns .. 'job:' .. id, 'lease_until') or now) <= now then
      lapsed = lapsed + 1
    end
  end
  states[RUNNING] = states[RUNNING] + #running
  states[QUEUED] = states[QUEUED] + call('ZCARD', live) - #running + call('ZCARD', ns .. 'held:' .. kind)
  states[BURIED] = states[BURIED] + call('ZCARD', ns .. 'buried:' .. kind)
  check(live, RUNS, RUNS + now, -RUNS)
  check(live, 0, now - SLOW_CHECK, SLOW_CHECK)
end

local endings = call('HGETALL', ns .. 'endings')
for i = 1, #endings, 2 do
  if tonumber(endings[i]) then
    local state = endings[i + 1]:match('^%l+')
    states[state] = states[state] + call('XLEN', ns .. 'finished:' .. endings[i])
  end
end

return { states[QUEUED], states[RUNNING], states[COMPLETED], states[BURIED], states[CANCELLED], lapsed,
  now - first_check, call('HGETALL', ns .. 'decisions') }
