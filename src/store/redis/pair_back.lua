local counted = KEYS

local function add_states(reply)
  local states = redis.call('MGET', unpack(KEYS))
  for q = 1, quotas do
    local state = states[q]
    reply[2 * q + 1], reply[2 * q + 2] = 0, 0
    if state then
      reply[2 * q + 1], reply[2 * q + 2] = struct.unpack('>I8I8', state)
    end
    tail[q] = state and string.sub(state, 17) or ''
  end
  for q = 1, quotas do
    reply[#reply + 1] = tail[q]
  end
end

