-- Sliding windows, as `window_state.lua` has them. `check_head.lua` comes first and says how it is called.
--
-- Most checks find the columns of their quotas as they left them, and no clock that stepped back. What they change is
-- written in place: all columns by one command, and by one or two more the sums of a quota whose bucket has ended; or
-- all by one, where there is no room for them. Others do as `window.lua` does.
--
-- Key of a check: the state.
-- Numbers of a quota: length of a bucket, us; limit; kind.
--
-- Told of a check, one of
--   counted ...        what each quota counted before: every cost was admitted, and each fits once more
--   {counted ..., state}
--                      the same with the state as it was before, false where there is none: when a cost was denied, is
--                      a peek, or would now be denied, and after a clock stepped back

-- The numbers of a check, with its first run of costs.
local NUMBERS = '<dd'
-- each
  .. 'ddd'
-- end each
  .. 'dd'

local COLUMNS = '>'
-- each
  .. 'I8I8I8I8I2'
-- end each

local QUOTAS = 0
-- each
  + 1
-- end each

local NEW = pack('>I8B', 0, QUOTAS)

for _ = 1, checks do
  local _, ends, cost, times
  -- each
  local length_q, limit_q, kind_q
  -- end each
  _, ends,
  -- each
    length_q, limit_q, kind_q,
  -- end each
    cost, times, at = read_at(NUMBERS, numbers, at)
  local key = names[base + 1]
  local state = call('GET', key)
  if type(state) == 'table' then
    reply[#reply + 1], at = false, ends
  else
    -- each
    local bucket_q = (now - now % length_q) / length_q
    local format_q, width_q, modulus_q = '>I4', 4, 4294967296
    if kind_q % 2 == 1 then
      format_q, width_q, modulus_q = '>I8', 8, 4503599627370496
    end
    local first_q, last_q, total_q, room_q = bucket_q, bucket_q, 0, 0
    local sums_q, skipped_q, counted_q = 0, 0, 0
    -- end each

    -- Where each column's sums are, if the state is as most are.
    local usual, grows = true, false
    if state then
      usual = #state >= HEADER + COLUMN * QUOTAS and string.byte(state, HEADER) == QUOTAS
      if usual then
        local place
        -- each
        local found_q
        -- end each
        -- each
        found_q, first_q, last_q, total_q, room_q,
        -- end each
          place = read_at(COLUMNS, state, HEADER + 1)
        -- each
        sums_q, place, skipped_q = place, place + room_q * width_q, bucket_q - last_q
        usual = usual and found_q == kind_q and skipped_q >= 0 and first_q <= last_q and total_q < modulus_q
          and (room_q == KEPT or last_q - first_q <= room_q)
        grows = grows or room_q < KEPT and skipped_q <= 128 and bucket_q - first_q > room_q
        -- end each
        usual = usual and place == #state + 1
      end
    end

    local spoilt, stepped, room, columns, before = false, false, math.huge, nil, nil
    if usual then
      -- each
      if skipped_q < 65 then
        local cut = bucket_q - 65
        counted_q = total_q
        if cut >= first_q then
          counted_q = (total_q - read_at(format_q, state, sums_q + (cut - first_q) % KEPT * width_q)) % modulus_q
        end
      end
      if limit_q - counted_q < room then
        room = limit_q - counted_q
      end
      -- end each
    else
      columns, before = columns_of(state)
      if columns then
        -- each
        counted_q = counted_at(columns[kind_q], bucket_q)
        stepped = stepped or columns[kind_q] ~= nil and columns[kind_q].last > bucket_q
        if limit_q - counted_q < room then
          room = limit_q - counted_q
        end
        -- end each
      else
        spoilt = true
      end
    end

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

    local failed = false
    if charged > 0 and usual then
      local old_end, new_end, ends_here, from, over, sums = 0, 0, nil, nil, nil, ''
      -- each
      ends_here = (last_q - last_q % 64 + 128) * length_q
      if ends_here > old_end then
        old_end = ends_here
      end
      ends_here = (bucket_q - bucket_q % 64 + 128) * length_q
      if ends_here > new_end then
        new_end = ends_here
      end
      from = (last_q - first_q) % KEPT
      if skipped_q > 128 then
        first_q, total_q = bucket_q, 0
        if grows then
          room_q = 0
        end
      elseif grows then
        local own = string.sub(state, sums_q, sums_q + room_q * width_q - 1)
        own, room_q = filled(own, room_q, from, skipped_q, pack(format_q, total_q))
        sums = sums .. own
      elseif skipped_q > 0 and not failed then
        over = from + skipped_q > KEPT and from + skipped_q - KEPT or 0
        failed = call('SETRANGE', key, text('%d', sums_q + from * width_q - 1),
          string.rep(pack(format_q, total_q), skipped_q - over)) ~= #state
        if over > 0 and not failed then
          failed = call('SETRANGE', key, text('%d', sums_q - 1), string.rep(pack(format_q, total_q), over)) ~= #state
        end
      end
      -- end each
      local heads = pack(COLUMNS
        -- each
        , kind_q, first_q, bucket_q, (total_q + charged) % modulus_q, room_q
        -- end each
      )
      if failed then
        failed = true
      elseif not state or grows then
        local mark = state and string.sub(state, 1, HEADER) or NEW
        failed = call('SET', key, mark .. heads .. sums, 'PX', life_until(new_end, now)).err ~= nil
      else
        failed = call('SETRANGE', key, HEADER, heads) ~= #state
        if new_end > old_end then
          call('PEXPIRE', key, life_until(new_end, now))
        end
      end
    elseif charged > 0 and not spoilt then
      local kinds = {}
      -- each
      kinds[_q] = kind_q
      columns[kind_q] = charged_in(columns[kind_q], kind_q, bucket_q, charged)
      -- end each
      failed = write(call, key, now, read_at('>I8', state), kinds, before, columns).err ~= nil
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
      tell[#tell + 1] = state
      reply[#reply + 1] = tell
    else
      -- each
      reply[#reply + 1] = counted_q
      -- end each
    end
  end
  base = base + 1
end
