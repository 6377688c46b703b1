-- settle: running -> completed | queued (release) | buried | cancelled
-- in: now, 2 id, 3 fence, 4 holder, 5 complete | release | bury | cancel, then
--     complete: 6 result    release: 6 cause, 7 delay, 8 error    bury: 6 reason, 7 error    cancel: 6 reason
-- out: settled, the state, the trailing job that may begin now | fenced, the state, '' if it is not known

local ENDS = {
  complete = { [COMPLETED] = true },
  release = { [QUEUED] = true, [CANCELLED] = true },
  bury = { [BURIED] = true },
  cancel = { [CANCELLED] = true },
}

local job, settlement = readable(known(ARGV[2])), ARGV[5]
if not job then
  return { 'fenced', '' }
end

if not last_run_was(job, ARGV[3], ARGV[4]) or (job.state ~= RUNNING and not ENDS[settlement][job.state]) then
  return { 'fenced', job.state }
end

if job.state == RUNNING then
  if settlement == 'complete' then
    job.result, job.error = ARGV[6], nil
    finish(job, COMPLETED)
  elseif settlement == 'bury' then
    bury(job, ARGV[6], present(ARGV[7]))
  elseif settlement == 'cancel' then
    job.reason = ARGV[6]
    finish(job, CANCELLED)
  else
    end_run(job, ARGV[6], present(ARGV[8]))
    if job.cancel_requested then
      job.reason = job.cancel_reason
      finish(job, CANCELLED)
    else
      queue(job, tonumber(ARGV[7]), {})
    end
  end
end
return { 'settled', job.state, not live(job) and job.trail_id or '' }
