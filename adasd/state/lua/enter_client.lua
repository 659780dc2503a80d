-- One request of a client, if its bounds leave room: a bucket of requests that fills again within a minute, and leases
-- that end by themselves. Everything is checked before the first write. The time is the server's: one for all gateways.
-- KEYS: bucket, leases.
-- ARGV: requests a minute, requests at a time (0: no bound), lease, life of a lease (ms).
-- Replies: {'OK', 0} | {'RATE', ms until one more may come} | {'CONCURRENCY', 0}.

local MINUTE = 60000
local bucket, leases = KEYS[1], KEYS[2]
local rate, concurrency, lease, life = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local level = rate
if rate > 0 then
  local stored = redis.call('HMGET', bucket, 'level', 'at')
  if stored[1] then
    local passed = math.max(0, now - tonumber(stored[2]))
    level = math.min(rate, tonumber(stored[1]) + passed * rate / MINUTE)
  end
  if level < 1 then
    return {'RATE', math.ceil((1 - level) * MINUTE / rate)}
  end
end
if concurrency > 0 and redis.call('ZCOUNT', leases, string.format('(%d', now), '+inf') >= concurrency then
  return {'CONCURRENCY', 0}
end

if rate > 0 then
  redis.call('HSET', bucket, 'level', tostring(level - 1), 'at', string.format('%d', now))
  redis.call('PEXPIRE', bucket, MINUTE)
end
if concurrency > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', string.format('%d', now))
  redis.call('ZADD', leases, string.format('%d', now + life), lease)
  redis.call('PEXPIRE', leases, life)
end
return {'OK', 0}
