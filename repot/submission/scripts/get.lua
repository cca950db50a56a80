-- ARGV id. Returns {status, now, record}; the status is '' for one that is not there.
return told(look(ARGV[1]).status, ARGV[1])
