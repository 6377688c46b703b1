// One button that people click twice, a bar, a cancel button. All that is known is known to the service: reload as you like.

const at = (id) => document.getElementById(id)
const project = () => at("project").value.trim()
const live = (job) => job.state === "queued" || job.state === "running"

let watched = { id: "", events: null }

at("ask").addEventListener("submit", async (event) => {
  event.preventDefault()
  const answer = await fetch(`/projects/${encodeURIComponent(project())}/plan`, { method: "POST" })
  const told = await answer.json()
  if (answer.status === 409) {
    refuse(told)
  } else if (!answer.ok) {
    say(told.detail ?? "The service does not answer as it should.")
    return
  } else {
    at("refused").hidden ||= watched.id !== told.id
  }
  watch(told.job_id ?? told.id)
})

at("cancel").addEventListener("click", async () => {
  await fetch(`/api/jobs/${watched.id}/cancel?reason=changed+my+mind`, { method: "POST" })
})

at("project").addEventListener("change", find)

// The 409 of a double click, with what the job is doing meanwhile.
async function refuse(told) {
  const job = await (await fetch(`/api/jobs/${told.job_id}`)).json()
  say(`There is a plan for ${project()} under way already: ${job.state}${job.progress ? `, ${percent(job)} %` : ""}. It is shown below.`)
  audit()
}

function say(text) {
  at("refused").textContent = text
  at("refused").hidden = false
}

// Follow a job by server-sent events; the browser comes back by itself when the connection is lost.
function watch(id) {
  if (watched.id === id) return
  watched.events?.close()
  watched = { id, events: new EventSource(`/api/jobs/${id}/events`) }
  watched.events.onmessage = ({ data }) => show(JSON.parse(data))
}

function show(job) {
  const ended = !live(job)
  const attempt = job.attempt > 1 ? `, attempt ${job.attempt}` : ""
  at("plan").hidden = false
  at("state").textContent = job.cancel_requested && !ended ? "being cancelled" : job.state + attempt
  at("bar").value = job.state === "completed" ? 1 : percent(job) / 100
  at("stage").textContent = ended ? ending(job) : [job.progress?.stage, job.progress?.message].filter(Boolean).join(": ")
  at("cancel").hidden = ended
  if (ended) {
    watched.events.close()
    watched.id = ""
    at("refused").hidden = true
    audit()
  }
}

function ending(job) {
  if (job.state !== "completed") return job.reason
  const processes = new Set(job.result.lessons.map((lesson) => lesson.process)).size
  return `${job.result.lessons.length} lessons, ${job.result.pages} pages, written by ${processes} ${processes > 1 ? "processes" : "process"}`
}

const percent = (job) => (job.progress?.total ? Math.round((100 * job.progress.done) / job.progress.total) : 0)

// Who was refused, and which call-backs have come.
async function audit() {
  const name = encodeURIComponent(project())
  const [duplicates, ends] = await Promise.all([
    fetch(`/api/duplicates?task=make_plan&scope=${name}&limit=5`).then((answer) => answer.json()),
    fetch(`/projects/${name}/ends`).then((answer) => answer.json()),
  ])
  const lines = [
    ...ends.slice(-5).reverse().map((end) => `call-back: ${end.state}, after ${end.attempts} attempt(s)`),
    ...duplicates.items.map((each) => `${each.caller}: ${each.answer}, at ${new Date(each.at).toLocaleTimeString()}`),
  ]
  at("audit").replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })))
}

// What is under way for this project, when the page is opened or another is named.
async function find() {
  at("plan").hidden = at("refused").hidden = true
  const query = new URLSearchParams([["task", "make_plan"], ["scope", project()], ["state", "queued"], ["state", "running"]])
  const { items } = await (await fetch(`/api/jobs?${query}`)).json()
  if (items.length) watch(items[0].id)
  audit()
}

// A call-back comes a moment after the end.
setInterval(audit, 3000)
find()
