-- duplicates: the audit, newest first
-- in: now, 2 cursor (the entry where the page before ended; '' = the first page), 3 limit, 4 task, 5 scope ('' = any)
-- out: the cursor ('' = nothing follows), then of each duplicate its fields and values, flat

--include parts/shared.lua
local limit, task, scope = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local newest, page, examined = ARGV[2] == '' and '+' or '(' .. ARGV[2], { '' }, 0

while true do
  local entries = call('XREVRANGE', ns .. 'duplicates', newest, '-', 'COUNT', FETCHED_AT_ONCE)
  if #entries == 0 then
    return page
  end
  for _, entry in ipairs(entries) do
    local fields = entry[2]
    local matches = (task == '' or fields[6] == task) and (scope == '' or fields[8] == scope)
    examined = examined + 1
    if (matches and #page == limit + 1) or examined > EXAMINED_AT_ONCE then
      page[1] = newest:sub(2)
      return page
    end
    newest = '(' .. entry[1]
    if matches then
      page[#page + 1] = fields
    end
  end
end
