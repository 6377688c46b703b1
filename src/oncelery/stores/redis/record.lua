-- record: running -> running, with progress or a finished step noted
-- in: now, 2 id, 3 fence, 4 holder, 5 progress ('' = none), 6 and 7 a step's name and value (missing: none)
-- out: recorded, '1' if a cancel is requested, else '' | fenced, the state | absent

--include parts/shared.lua
local id, fence, holder, progress, step, value = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local name = ns .. 'job:' .. id
local run = call('HMGET', name, 'state', 'fence', 'holder', 'cancel_requested', 'plain', 'created_at')
if run[1] == RUNNING and run[2] == fence and run[3] == holder then
  if progress ~= '' then
    call('HSET', name, 'progress', progress)
  end
  if step then
    call('HSETNX', name, 'step:' .. step, value)
  end
  if run[5] then
    -- What a plain job lacks: see `unfinished` in reading.lua.
    call('HSET', name, 'sent_at', run[6], 'begun_at', fence, 'changed_at', fence, 'attempt', '1')
    call('HDEL', name, 'plain')
  end
  return { 'recorded', run[4] or '' }
end

--include parts/reading.lua
local job = known(id)
if absent(job, fence) then
  return { 'absent' }
end
return { 'fenced', job.state }
