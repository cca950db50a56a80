-- ARGV id. Returns {status, now, record}; the status is '' if there is no such job.
return reply(load_job(ARGV[1]).status, ARGV[1])
