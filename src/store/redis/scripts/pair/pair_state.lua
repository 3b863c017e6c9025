-- Fixed windows or token buckets of one key: the states of all quotas of its policy, in one String.
-- The algorithm's part precedes, and the operation follows.
--
-- The parts of the String, all numbers big-endian:
--   till    8 bytes: the expiry of the key, us
--   count   1 byte: number of columns
--   the pairs of all columns, then their kinds and tail lengths, then their tails
--
-- A column, 34 bytes, is the state of one quota:
--   pair    16 bytes: the two numbers that change with charges
--   kind    16 bytes: two numbers that identify the quota; the algorithm's part defines all of them
--   tail    2 bytes: length of its tail, the data for refunds and undone reservations
--
-- Frequent changes come first. So a charge that changes only the pairs writes a few bytes. A SET
-- with TTL costs the server a microsecond more.
--
-- Columns of other quotas follow those of the policy while they count. The policy had these quotas
-- before, or has them on another node. A full write reads them and drops corrupt ones.
--
-- A quota has six numbers, a to f; a and b are its kind. The algorithm's part defines these:
--   standing(a, b, c, d, e, f, first, second)
--                         Returns the remaining units, and the base of a charge: instant, number.
--   charge(a, b, instant, number, cost)
--                         Returns the pair after a charge.
--   ends_at(a, b, d, e, f, first, second)
--                         Returns when the pair stops counting, us. Without d, e and f, which other
--                         quotas lack, the instant is not too early.
--   goes_on(number, tail) Returns whether the tail still matters for a charge on this number.
--   is_tail(length)       Returns whether a tail may have this length.
--   spare(instant)        Returns extra life, us, for a charged key that ends at this instant.
--                         Meanwhile no charge needs a new TTL.

local HEADER, COLUMN = 9, 34

-- Other functions on columns. Most checks need none, and creating them takes longer than those
-- checks. The algorithm's second part ends `pairs_of_key` and returns these:
--   columns_of(state)     Returns the columns of a String.
--   pairs_of(columns, kinds)
--                         Returns the pair and the tail of each quota, given {a, b}.
--   others(columns, from, own)
--                         Returns the columns from place `from` on that belong to no quota.
local function pairs_of_key()
  -- The most columns of one String: those of a policy, and some former ones.
  local MOST = 32

  -- The columns of a String; nil if it is corrupt.
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

  -- Takes the first column of these numbers that no quota has taken; nil without one.
  local function take_column(columns, a, b)
    for _, column in ipairs(columns) do
      if column.a == a and column.b == b and not column.taken then
        column.taken = true
        return {column.first, column.second, column.tail}
      end
    end
  end

  -- The counting columns of other quotas: their number, their parts, and the latest end. A quota
  -- has each column before `from`, and each `taken` one.
  local function others(columns, from, own)
    local count, heads, rests, tails, ends = 0, {}, {}, {}, 0
    for place = from, #columns do
      local column = columns[place]
      local till = not column.taken and ends_at(column.a, column.b, nil, nil, nil, column.first, column.second) or 0
      if till >= now and own + count < MOST then
        count, ends = count + 1, math.max(ends, till)
        heads[count] = struct.pack('>I8I8', column.first, column.second)
        rests[count] = column.kind .. struct.pack('>I2', #column.tail)
        tails[count] = column.tail
      end
    end
    return count, table.concat(heads), table.concat(rests), table.concat(tails), ends
  end

