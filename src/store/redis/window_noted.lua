-- What a charge left, for `hold.lua` and `once.lua`; `window.lua` precedes.

local function mark(q, till)
  local current = read[at[q] + 1]
  local marked = current and struct.unpack('>I8', current) or 0
  redis.call('SETRANGE', KEYS[place[q]], 0, struct.pack('>I8', math.max(marked, till)))
end

-- The last bucket of a segment that holds anything, from the one numbered `from` on.
local function last_bucket(q, sums, from)
  for i = (#sums - HEADER) / width[q] - 1, from, -1 do
    local sum = struct.unpack(format[q], sums, HEADER + i * width[q] + 1)
    local below = i > 0 and struct.unpack(format[q], sums, HEADER + (i - 1) * width[q] + 1) or 0
    if sum > below then
      return i
    end
  end
end

local function noted(q)
  local f, last = length[q] / 64, bucket[q]
  if stepped then
    local current, after = read[at[q] + 1], at[q + 1] - at[q] == 3 and read[at[q] + 2]
    last = current and last_bucket(q, current, last + 1) or last
    local beyond = after and last_bucket(q, after, 0)
    last = beyond and beyond + 64 or last
  end
  return limit[q] - reply[q + 1] - charged, (segment[q] * 64 + last + 65) * f - now, 0, 0
end

