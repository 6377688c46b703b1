-- How a duplicate is counted, on the job that answers it and in the audit. For reserve and begin; goes with accept.lua.

local function note(job, answer)
  if job.place then
    job.duplicates = call('HINCRBY', ns .. 'repeats', job.place, 1)
  else
    update(job, { duplicates = (job.duplicates or 0) + 1 })
  end
  local of_scope, hour = job.scope or '', digits(now - now % HOUR)
  local counted = cjson.encode({ job.task, of_scope, answer })
  call('HINCRBY', ns .. 'hour:' .. hour, counted, 1)
  if job.scope then
    call('HINCRBY', ns .. 'hour:' .. hour .. ':' .. job.scope, counted, 1)
  end
  call('ZADD', ns .. 'hours', hour, hour)
  call('XADD', ns .. 'duplicates', 'MAXLEN', '~', AUDIT_KEPT, '*', 'at', at, 'job_id', job.id,
    'task', job.task, 'scope', of_scope, 'caller', caller, 'answer', answer)
end
