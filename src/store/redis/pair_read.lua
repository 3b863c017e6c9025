local read = redis.call('MGET', unpack(KEYS))
local reply, first, second, tail, room = {now}, {}, {}, {}, {}
local tailed = false
for q = 1, quotas do
  local a, b, state = 0, 0, read[q]
  if state then
    a, b = struct.unpack('>I8I8', state)
    if #state > 16 then
      tail[q], tailed = string.sub(state, 17), true
    end
  end
  first[q], second[q], room[q] = a, b, left(q, a, b)
  reply[2 * q], reply[2 * q + 1] = a, b
end
if tailed then
  for q = 1, quotas do
    reply[#reply + 1] = tail[q] or ''
  end
end

