"""Oncelery in a Celery app: the extension, the task class, what the worker's main process does.

extension     `Oncelery(app)`: what all the others find each other by
made_once     a property that is made once
declaring     what cannot work as it is declared is refused
recommended   settings of Celery that a fail-over needs
task          the class of guarded tasks: apply_async and __call__                       PUBLISH
publishing    from a call to a job: reserved, then sent
identifying   what a call is known by, from its arguments
gate          the message is made while the ledger is asked
within        reserved in the caller's own transaction
times         how long a call waits, the ways Celery writes it
message       what is kept of a call, and the headers that go with it
routing       where a message goes, and the name of its queue
broker        connections of a process that serves others: none waits for long
call          one delivery, as `execution` sees it                                       EXECUTE
replacing     a task that is part of what replaces it
replaying     a message whose job has ended: what Celery is told of it
successors    what Celery publishes when a task has ended
time_limits   a soft time limit strikes inside a task, and nowhere else
request       the same delivery in the worker's main process
opening       who opens a message that has come before, and may die of it
background    what the main process asks of the ledger, beside its loop
forks         no child is forked while a thread uses Celery's broker or results
board         what each child holds, for its parent to see                               STAY ALIVE
keeper        looks after the children: renews for them, lets go when they die
sweeper       publishes again what is lost
orphans       messages that nobody will acknowledge, of jobs that have ended
reconnecting  a worker outlives its broker
only_one      one instance of a function at a time
callbacks     tells a URL of a job's end                                                 TELL
mirror        copies dead letters to a queue
reading       what a call and its result were, for people and for duplicates
facts         what the doctor is told of app, broker and workers
"""
