-- One round or run, all or nothing. Redis does not roll a script back, so every check comes before the first write.
-- KEYS: meta, ids, state.
-- ARGV: owner, epoch, round, digest, ttl (seconds), lease (milliseconds), channel, number of rounds, packed ids, finish
--       reason ('' for none), number of counters, then (field, value) per counter, then (offset, bytes) per patch.
-- Replies: OK <followers> | GONE | CONFLICT <why> | INVALID <why>.

local meta, ids, state = KEYS[1], KEYS[2], KEYS[3]
local owner, epoch, round, digest, ttl, lease, channel, rounds = unpack(ARGV, 1, 8)
local tokens, finish_reason, counters = ARGV[9], ARGV[10], tonumber(ARGV[11])
local first_counter, first_patch = 12, 12 + 2 * counters
local time = redis.call('TIME')
local lapses = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + lease)

local stored = redis.call('HMGET', meta, 'owner', 'epoch', 'round', 'digest', 'length', 'finish_reason')
if not stored[1] then
  return 'GONE'
end
if stored[1] ~= owner or stored[2] ~= epoch then
  return 'CONFLICT another owner or epoch holds the session'
end

local next_round = tonumber(stored[3])
if tonumber(round) == next_round - rounds and stored[4] == digest then
  return 'OK 0'
end
if stored[6] then
  return 'CONFLICT the session is finished'
end
if tonumber(round) ~= next_round then
  return 'CONFLICT round ' .. round .. ' where ' .. stored[3] .. ' is the next one'
end

-- A key that an eviction took away would otherwise be grown from nothing.
local length = tonumber(stored[5])
if redis.call('EXISTS', ids, state) < 2 or redis.call('STRLEN', ids) ~= 4 * length then
  return 'GONE'
end
local state_bytes = redis.call('STRLEN', state)
for patch = first_patch, #ARGV, 2 do
  if tonumber(ARGV[patch]) + #ARGV[patch + 1] > state_bytes then
    return 'INVALID a patch reaches beyond the stored state of ' .. state_bytes .. ' bytes'
  end
end

length = string.format('%d', redis.call('APPEND', ids, tokens) / 4)
for patch = first_patch, #ARGV, 2 do
  redis.call('SETRANGE', state, ARGV[patch], ARGV[patch + 1])
end
local round_after = string.format('%d', next_round + rounds)
redis.call('HSET', meta, 'round', round_after, 'digest', digest, 'length', length, 'lease', lapses)
for counter = first_counter, first_patch - 1, 2 do
  redis.call('HSET', meta, ARGV[counter], ARGV[counter + 1])
end
if finish_reason ~= '' then
  redis.call('HSET', meta, 'finish_reason', finish_reason)
end
for _, key in ipairs(KEYS) do
  redis.call('EXPIRE', key, ttl)
end
return 'OK ' .. redis.call('PUBLISH', channel, length)
