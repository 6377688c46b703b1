-- duplicate_counts: the audit by hour, oldest first
-- in: now, 2 since, 3 task, 4 scope ('' = any)
-- out: the hour to go on with ('' = nothing follows), then of each hour: the hour, and its counts by JSON
--      [task, scope, answer], flat

--include parts/shared.lua
local since, task, scope = math.max(tonumber(ARGV[2]), now - HOURS_KEPT), ARGV[3], ARGV[4]
local start = cjson.encode({ task }):sub(1, -2) .. ','

local page, examined = { '' }, 0
for _, hour in ipairs(call('ZRANGEBYSCORE', ns .. 'hours', digits(since - since % HOUR), '+inf')) do
  if examined > EXAMINED_AT_ONCE then
    page[1] = hour
    return page
  end
  local all, chosen = call('HGETALL', ns .. 'hour:' .. hour .. (scope ~= '' and ':' .. scope or '')), {}
  for i = 1, #all, 2 do
    if task == '' or all[i]:sub(1, #start) == start then
      chosen[#chosen + 1] = all[i]
      chosen[#chosen + 1] = all[i + 1]
    end
  end
  examined = examined + 1 + #all / 2
  if #chosen > 0 then
    page[#page + 1] = hour
    page[#page + 1] = chosen
  end
end
return page
