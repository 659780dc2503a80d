-- The owner is alive: its lease from now on, or its end (0 ms). Followers are woken, and counted.
-- KEYS: meta, ids, state.
-- ARGV: owner, epoch, ttl (seconds), lease (milliseconds), channel.
-- Replies: OK <followers> | GONE | CONFLICT <why>.

local meta = KEYS[1]
local owner, epoch, ttl, lease, channel = unpack(ARGV)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local stored = redis.call('HMGET', meta, 'owner', 'epoch', 'length', 'finish_reason')
if not stored[1] then
  return 'GONE'
end
if stored[1] ~= owner or stored[2] ~= epoch then
  return 'CONFLICT another owner or epoch holds the session'
end
if not stored[4] then
  redis.call('HSET', meta, 'lease', string.format('%.0f', now + lease))
  for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, ttl)
  end
end
return 'OK ' .. redis.call('PUBLISH', channel, stored[3])
