-- What `back.lua` does with sliding windows; `back_head.lua` and `window_head.lua` precede.

-- All that were sent: to a clock that steps back, older ones than TIME chooses would count again.
local counted = KEYS

-- A charge made at `made` is taken from its own bucket, a cost from the oldest one upward.
local function take_back(q)
  local w = limit[q] < 4294967296 and 4 or 8
  local f = w == 4 and '>I4' or '>I8'
  local rest, given = cost, 0
  for n = 0, at[q + 1] - at[q] - 1 do
    local sums = read[at[q] + n]
    local filled = sums and (#sums - HEADER) / w or 0
    local from = n == 0 and bucket[q] or 0
    if made then
      local own = math.floor((made - (segment[q] - 1 + n) * length[q]) / (length[q] / 64))
      from = own >= from and own < filled and own or filled
    end
    if from < filled and rest > 0 then
      local function sum(i)
        return i < 0 and 0 or struct.unpack(f, sums, HEADER + i * w + 1)
      end
      local below, last = sum(from - 1), made and from or filled - 1
      local amount, lowered = math.min(rest, sum(last) - below), {}
      for i = from, filled - 1 do
        lowered[#lowered + 1] = struct.pack(f, sum(i) - math.min(amount, sum(i) - below))
      end
      if amount > 0 then
        local start = string.format('%.0f', HEADER + from * w)
        redis.call('SETRANGE', KEYS[place[q] - 1 + n], start, table.concat(lowered))
      end
      rest, given = rest - amount, given + amount
    end
  end
  return given
end

local function add_states(reply)
  local now_read = redis.call('MGET', unpack(wanted))
  for q = 1, quotas do
    reply[#reply + 1] = now_read[at[q]]
    reply[#reply + 1] = now_read[at[q] + 1]
    reply[#reply + 1] = at[q + 1] - at[q] == 3 and now_read[at[q] + 2]
  end
end

