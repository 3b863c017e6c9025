-- Sliding windows, as `window_head.lua` and `window.lua` have them, where the segments are described. `check_head.lua`
-- comes first and says how it is called.
--
-- Keys of a check: for each quota its segments in ascending order, the one before `from`'s up to `to`'s.
-- Numbers of a quota: length of a bucket, us; limit; what to take from the number of a segment for its place among the
-- key's; its last segment there.
--
-- Told of a check, one of
--   counted ...        what each quota counted before: every cost was admitted, and each fits once more
--   {counted ..., previous, current, next of each quota}
--                      the same with the segments as they were before, false where there is none: when a cost was
--                      denied, is a peek, or would now be denied, and after a clock stepped back

local HEADER = 8

-- The numbers of a check, with its first run of costs.
local NUMBERS = '<dd'
-- each
  .. 'dddd'
-- end each
  .. 'dd'

-- Whether somebody else wrote it.
local function is_spoilt(segment, width)
  local sums = #segment - HEADER
  return sums <= 0 or sums > 64 * width or sums % width ~= 0
end

for _ = 1, checks do
  local segments, ends, cost, times
  -- each
  local length_q, limit_q, shift_q, last_q
  -- end each
  segments, ends,
  -- each
    length_q, limit_q, shift_q, last_q,
  -- end each
    cost, times, at = read_at(NUMBERS, numbers, at)
  local read = call('MGET', unpack(names, base + 1, base + segments))
  local failed, spoilt, stepped, room = false, false, false, math.huge
  if read.err then
    reply[#reply + 1], at = false, ends
  else
    -- each
    local bucket_q = now % (length_q * 64)
    local segment_q = (now - bucket_q) / (length_q * 64)
    bucket_q = (bucket_q - bucket_q % length_q) / length_q
    local place_q = segment_q - shift_q
    local before_q, current_q, after_q = read[place_q - 1], read[place_q], segment_q < last_q and read[place_q + 1]
    local format_q, width_q = '>I4', 4
    if limit_q >= 4294967296 then
      format_q, width_q = '>I8', 8
    end
    if before_q and is_spoilt(before_q, width_q) or current_q and is_spoilt(current_q, width_q)
      or after_q and is_spoilt(after_q, width_q) then
      spoilt, before_q, current_q, after_q = true, false, false, false
    end
    local total_q, filled_q = 0, 0
    if current_q then
      total_q = read_at(format_q, current_q, #current_q - width_q + 1)
      filled_q = (#current_q - HEADER) / width_q
      stepped = stepped or filled_q > bucket_q + 1
    end
    local counted_q = total_q
    if after_q then
      counted_q = counted_q + read_at(format_q, after_q, #after_q - width_q + 1)
      stepped = true
    end
    if before_q and #before_q > HEADER + bucket_q * width_q then
      counted_q = counted_q + read_at(format_q, before_q, #before_q - width_q + 1)
      if bucket_q > 0 then
        counted_q = counted_q - read_at(format_q, before_q, HEADER + (bucket_q - 1) * width_q + 1)
      end
    end
    if limit_q - counted_q < room then
      room = limit_q - counted_q
    end
    -- end each

    -- Decide the costs in order; each is charged to all quotas or to none.
    local charged, dearest, tell = 0, 0, stepped
    while true do
      if cost == 0 then
        tell = true
      else
        local left = room - charged
        local fit = (left - left % cost) / cost
        if fit > times then
          fit = times
        end
        if fit > 0 then
          charged = charged + fit * cost
        end
        if cost > dearest then
          dearest = cost
        end
      end
      if at == ends then
        break
      end
      cost, times, at = read_at('<dd', numbers, at)
    end
    tell = tell or charged + dearest > room

    if charged > 0 and not spoilt then
      local key, sum, wrote, written
      -- each
      if not failed then
        key, sum = names[base + place_q], pack(format_q, total_q + charged)
        if not current_q then
          -- A segment matters until its last bucket has left the window; one second more spares the edge.
          local life = (segment_q + 2) * length_q * 64 - now
          local ttl = text('%.0f', math.ceil(life / 1000) + 1000)
          wrote = not call('SET', key, string.rep('\0', HEADER + bucket_q * width_q) .. sum, 'PX', ttl).err
        elseif filled_q <= bucket_q then
          local skipped = string.rep(pack(format_q, total_q), bucket_q - filled_q)
          wrote = call('APPEND', key, skipped .. sum) == HEADER + (bucket_q + 1) * width_q
        elseif filled_q == bucket_q + 1 then
          wrote = call('SETRANGE', key, text('%d', HEADER + bucket_q * width_q), sum) == #current_q
        else
          -- After a step back, all later buckets of the segment as well.
          local sums = {}
          for j = bucket_q, filled_q - 1 do
            sums[#sums + 1] = pack(format_q, read_at(format_q, current_q, HEADER + j * width_q + 1) + charged)
          end
          wrote = call('SETRANGE', key, text('%d', HEADER + bucket_q * width_q), table.concat(sums)) == #current_q
        end
        if not wrote then
          failed, spoilt = true, written
        end
        written = true
      end
      -- end each
    end

    if spoilt then
      reply[#reply + 1] = ''
    elseif failed then
      reply[#reply + 1] = false
    elseif tell then
      tell = {}
      -- each
      tell[_q] = counted_q
      -- end each
      -- each
      tell[#tell + 1] = before_q
      tell[#tell + 1] = current_q
      tell[#tell + 1] = after_q
      -- end each
      reply[#reply + 1] = tell
    else
      -- each
      reply[#reply + 1] = counted_q
      -- end each
    end
  end
  base = base + segments
end
