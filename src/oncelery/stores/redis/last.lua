-- last: any -> the same
-- in: now, 2 key     out: the key's newest job, or none

--include parts/shared.lua
--include parts/reading.lua
local job = readable(last_of(ARGV[2]))
return job and told(job)
