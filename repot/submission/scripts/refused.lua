-- ARGV how many. Returns {audit, newest first; counts; costs}.
return {redis.call('XREVRANGE', base .. ':refused', '+', '-', 'COUNT', ARGV[1]),
  redis.call('HGETALL', base .. ':counts'), redis.call('HGETALL', base .. ':costs')}
