-- A new owner under the next epoch. The former owner's commits are refused from then on.
-- KEYS: meta, ids, state.
-- ARGV: digest, owner, ttl (seconds), lease (milliseconds), claim: on a session whose lease has lapsed ('lapsed'), on
--       any ('any'), or on one that is still in this epoch.
-- Replies: OK <epoch> <round> | GONE | CONFLICT <why>.

local meta, ids, state = KEYS[1], KEYS[2], KEYS[3]
local digest, owner, ttl, lease, claim = unpack(ARGV)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local stored = redis.call('HMGET', meta, 'epoch', 'round', 'length', 'finish_reason', 'lease', 'taken')
if not stored[1] or redis.call('EXISTS', ids, state) < 2 or redis.call('STRLEN', ids) ~= 4 * tonumber(stored[3]) then
  return 'GONE'
end
-- The digest is drawn per call: seen again, it is this very call, repeated because its reply was lost.
if stored[6] == digest then
  return 'OK ' .. stored[1] .. ' ' .. stored[2]
end
if stored[4] then
  return 'CONFLICT the session is finished'
end
if claim == 'lapsed' and tonumber(stored[5] or 0) > now then
  return 'CONFLICT the session is running'
end
if tonumber(claim) and claim ~= stored[1] then
  return 'CONFLICT another owner or epoch holds the session'
end

local epoch = string.format('%d', stored[1] + 1)
local until_then = string.format('%.0f', now + lease)
redis.call('HSET', meta, 'owner', owner, 'epoch', epoch, 'lease', until_then, 'taken', digest)
for _, key in ipairs(KEYS) do
  redis.call('EXPIRE', key, ttl)
end
return 'OK ' .. epoch .. ' ' .. stored[2]
