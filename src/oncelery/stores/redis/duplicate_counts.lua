-- duplicate_counts: the audit by hour, oldest first
-- in: now, 2 since     out: of each hour: the hour, and its counts by JSON [task, scope, answer], flat

--include parts/shared.lua
local since = tonumber(ARGV[2])

local counts = {}
for _, hour in ipairs(call('ZRANGEBYSCORE', ns .. 'hours', digits(since - since % HOUR), '+inf')) do
  counts[#counts + 1] = hour
  counts[#counts + 1] = call('HGETALL', ns .. 'hour:' .. hour)
end
return counts
