-- Leases that are still in use live on; one that was given back meanwhile stays away.
-- KEYS: leases.
-- ARGV: life of a lease (ms), then leases.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for place = 2, #ARGV do
  redis.call('ZADD', KEYS[1], 'XX', string.format('%d', now + ARGV[1]), ARGV[place])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 'OK'
