-- Fixed windows or token buckets of one key: the states of all quotas of its policy, in one String. What is done with
-- it follows, what is the algorithm's precedes.
--
-- till, 8 bytes: when the key ends, us; number of columns, 1 byte; then of each column its pair, of each the rest, and
-- of each its tail. What changes most often is first, so that a charge that leaves the rest as it is writes a few
-- bytes: to set a key with its TTL takes the server a microsecond more.
-- A column, 34 bytes, is the state of one quota:
--   pair    16 bytes: two numbers that it reckons with
--   kind    16 bytes: two that tell it from others; the algorithm's part says what they all are
--   tail    2 bytes: the length of its tail, which is what is kept so that charges may be taken back
--
-- All numbers are big-endian. Columns of other quotas stay behind those of the policy as long as they count: of quotas
-- that it had before, or has by the configuration of another node. They are read when the whole is written; what is
-- nobody's column goes then.
--
-- Of the six numbers that are told of a quota (a to f), of which a and b are its kind, the algorithm's part tells
--   standing(a, b, c, d, e, f, first, second)   what is left now; and what a charge is added to: an instant, a number
--   charge(a, b, instant, number, cost)         the pair after a charge
--   ends_at(a, b, d, e, f, first, second)       when the pair says nothing any more, us; of other quotas, of which d, e
--                                               and f are not known, not too early
--   goes_on(number, tail)   whether the tail still matters, where a charge is added to this number
--   is_tail(length)         whether a tail may be so long
--   spare(instant)          how much longer a key may live that was charged again and ends at this instant, us: so long
--                           no charge need set its TTL anew

local HEADER, COLUMN = 9, 34

-- What can be done with columns besides. Most checks need none of these functions, and making them takes longer than
-- what those do.
local function pairs_of_key()
  -- Columns that one String may have: those of a policy, and of some before it.
  local MOST = 32

  -- The columns of a String; nil where somebody else wrote it.
  local function columns_of(state)
    if #state < HEADER then
      return nil
    end
    local till, count, at = struct.unpack('>I8B', state)
    local columns, rest, tails = {}, at + count * 16, at + count * COLUMN
    if #state < tails - 1 or till > EXACT then
      return nil
    end
    for number = 1, count do
      local column, length = {kind = string.sub(state, rest, rest + 15)}, nil
      column.first, column.second, at = struct.unpack('>I8I8', state, at)
      column.a, column.b, length, rest = struct.unpack('>I8I8I2', state, rest)
      if column.a == 0 or math.max(column.a, column.b, column.first, column.second) > EXACT
        or length > 0 and not is_tail(length) then
        return nil
      end
      column.tail = string.sub(state, tails, tails + length - 1)
      tails = tails + length
      columns[number] = column
    end
    if tails == #state + 1 then
      return columns
    end
  end

  -- The pair and the tail of a quota; without a column it has counted nothing.
  local function pair_of(columns, a, b)
    for _, column in ipairs(columns) do
      if column.a == a and column.b == b then
        return column.first, column.second, column.tail
      end
    end
    return 0, 0, ''
  end

  -- The columns that are none of the policy's and still count: how many, their parts, and until when.
  local function others(columns, ours, own)
    local count, heads, rests, tails, ends = 0, {}, {}, {}, 0
    for _, column in ipairs(columns) do
      local till = not ours[column.kind] and ends_at(column.a, column.b, nil, nil, nil, column.first, column.second) or 0
      if till >= now and own + count < MOST then
        count, ends = count + 1, math.max(ends, till)
        heads[count] = struct.pack('>I8I8', column.first, column.second)
        rests[count] = column.kind .. struct.pack('>I2', #column.tail)
        tails[count] = column.tail
      end
    end
    return count, table.concat(heads), table.concat(rests), table.concat(tails), ends
  end

  return {columns_of = columns_of, pair_of = pair_of, others = others}
end

