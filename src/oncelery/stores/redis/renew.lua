-- renew: running -> running, until later
-- in: now, then of each lease: id, fence, holder, duration
-- out: of each lease: lease_until, '1' if a cancel is requested, else '' | the state of a job that is not ours, and false
--      | absent: '' and false

--include parts/shared.lua
--include parts/reading.lua
local answers = {}
for i = 2, #ARGV, 4 do
  local id, fence, holder, duration = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local name = ns .. 'job:' .. id
  local run = call('HMGET', name, 'state', 'fence', 'holder', 'cancel_requested', 'kind')
  if run[1] == RUNNING and run[2] == fence and run[3] == holder then
    local lease_until = digits(now + duration)
    call('HSET', name, 'lease_until', lease_until, 'lease_for', duration)
    call('ZADD', ns .. 'live:' .. run[5], digits(RUNS + lease_until), id)
    answers[#answers + 1] = lease_until
    answers[#answers + 1] = run[4] or ''
  else
    local job = known(id)
    answers[#answers + 1] = absent(job, fence) and '' or job.state
    answers[#answers + 1] = false
  end
end
return answers
