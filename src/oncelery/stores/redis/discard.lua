-- discard: buried -> absent
-- in: now, 2 id     out: discarded | not_buried, and the job | absent

--include shared.lua
--include reading.lua
local job = readable(known(ARGV[2]))
if not job then
  return { 'absent' }
elseif job.state ~= BURIED then
  return { 'not_buried', told(job) }
end

local was = told(job)
local keys = bucket('keys', job.key)
if call('HGET', keys, job.key) == job.id then
  call('HDEL', keys, job.key)
end
if job.scope then
  call('ZREM', ns .. 'scope:' .. job.scope, job.id)
end
call('ZREM', ns .. 'buried:' .. job.kind, job.id)
call('DEL', ns .. 'job:' .. job.id, ns .. 'body:' .. job.id)
return { 'discarded', was }
